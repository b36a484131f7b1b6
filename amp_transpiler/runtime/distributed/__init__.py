"""Data-parallel steps over `torch.distributed`: ranks, their exchange of values, and what they do when one is lost."""
