"""Small networks of plain torch.nn, one of each shape of model, for `export_corpus.py --small`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody writes it


class Encoder(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A text encoder with a padding mask, mean pooling over what is not padding, and a label by ArgMax."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(500, 64), nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation="gelu", norm_first=True)
        self.layers, self.norm, self.head = nn.ModuleList([layer, layer]), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return hidden states, logits and labels."""
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=mask == 0)
        hidden = self.norm(hidden)
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        logits = self.head((hidden * weight).sum(1) / weight.sum(1))
        return hidden, logits, logits.argmax(-1)


class Decoder(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """One step of a causal decoder: RMS norms, rotary positions, grouped heads, past keys, a mask, gates."""

    HEADS, GROUPS, SIZE = 4, 2, 16

    def __init__(self) -> None:
        super().__init__()
        width, grouped = self.HEADS * self.SIZE, self.GROUPS * self.SIZE
        self.tokens, self.head = nn.Embedding(300, width), nn.Linear(width, 300, bias=False)
        self.before, self.between, self.after = nn.RMSNorm(width), nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = nn.Linear(width, grouped, bias=False), nn.Linear(width, grouped, bias=False)
        self.gate, self.up = nn.Linear(width, 96, bias=False), nn.Linear(width, 96, bias=False)
        self.down = nn.Linear(96, width, bias=False)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, past_key: Tensor, past_value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, and keys and values with those of `ids` appended."""
        hidden = self.tokens(ids)
        normed = self.before(hidden)
        key = torch.cat([past_key, self._turn(self._heads(self.key(normed)), positions)], 2)
        value = torch.cat([past_value, self._heads(self.value(normed))], 2)
        query = self._turn(self._heads(self.query(normed)), positions)
        scores = query @ key.repeat_interleave(2, 1).transpose(2, 3) / self.SIZE**0.5
        scores = scores.masked_fill(mask == 0, torch.finfo(torch.float32).min)
        mixed = torch.softmax(scores, -1) @ value.repeat_interleave(2, 1)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.between(hidden)
        hidden = hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return self.head(self.after(hidden)), key, value

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.unflatten(2, (-1, self.SIZE)).transpose(1, 2)

    def _turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        half = self.SIZE // 2
        angles = positions.unsqueeze(1) * 10000.0 ** (-torch.arange(half) / half)
        first, second = heads[..., :half], heads[..., half:]
        sine, cosine = angles.sin(), angles.cos()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _block(channels: int, to: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, to, 3, padding=1), nn.GroupNorm(4, to), nn.SiLU())


class UNet(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Segmentation: down by pooling, up by transposed convolution and by interpolation, skips, and labels by ArgMax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.lowest = _block(3, 16), _block(16, 32), _block(32, 48)
        self.up, self.merge_second, self.merge_first = nn.ConvTranspose2d(48, 32, 2, 2), _block(64, 32), _block(48, 16)
        self.head = nn.Conv2d(16, 5, 1)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores of every class and pixel, and the label of every pixel."""
        first = self.first(pixels)
        second = self.second(F.max_pool2d(first, 2))
        lowest = self.lowest(F.avg_pool2d(second, 2))
        second = self.merge_second(torch.cat([self.up(lowest), second], 1))
        up = F.interpolate(second, scale_factor=2.0, mode="bilinear", align_corners=False)
        scores = self.head(self.merge_first(torch.cat([up, first], 1)))
        return scores, scores.argmax(1)


class Detector(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Detection: depthwise convolutions, boxes on a grid, the best by TopK, and suppression by their overlaps."""

    BEST = 5

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, to in ((3, 16), (16, 32), (32, 48)):
            layers += [nn.Conv2d(channels, channels, 3, 2, 1, groups=channels), nn.Conv2d(channels, to, 1)]
            layers += [nn.BatchNorm2d(to), nn.Hardswish()]
        self.backbone, self.boxes, self.scores = nn.Sequential(*layers), nn.Conv2d(48, 4, 1), nn.Conv2d(48, 6, 1)
        with torch.no_grad():  # else all the scores would be the same but for the fourth digit
            for layer in (*layers, self.scores):
                if isinstance(layer, nn.Conv2d):
                    layer.weight.mul_(3)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the corners of the best boxes, their scores, labels, and whether no better one covers it."""
        features = self.backbone(pixels)
        best, labels = self.scores(features).flatten(2).max(1)
        scores, order = torch.topk(best, self.BEST, dim=1)
        boxes = self._corners(features).gather(1, order.unsqueeze(-1).expand(-1, -1, 4))
        low = torch.maximum(boxes[:, :, None, :2], boxes[:, None, :, :2])
        high = torch.minimum(boxes[:, :, None, 2:], boxes[:, None, :, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
        overlap = shared / (area[:, :, None] + area[:, None, :] - shared)
        remaining = ((overlap > 0.5) & torch.ones(self.BEST, self.BEST, dtype=torch.bool).triu(1)).sum(1) == 0
        return boxes, scores, labels.gather(1, order), remaining

    def _corners(self, features: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
        centres = (torch.stack([columns, rows], -1).flatten(0, 1) + 0.5) * 8.0
        shift, size = self.boxes(features).flatten(2).transpose(1, 2).split(2, -1)
        middle, half = centres + 8 * shift.tanh(), 8 * size.clamp(-3, 3).exp()
        return torch.cat([middle - half, middle + half], -1)


class Speech(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Speech: the logarithm of a spectrum by convolutions, a GRU, and symbols by ArgMax."""

    def __init__(self) -> None:
        super().__init__()
        turns = torch.arange(33).unsqueeze(1) * torch.arange(64) * (2 * torch.pi / 64)
        waves = torch.cat([turns.cos(), turns.sin()]) * torch.hann_window(64)
        self.register_buffer("waves", waves.unsqueeze(1))
        self.conv, self.norm = nn.Conv1d(33, 48, 3, padding=1), nn.BatchNorm1d(48)
        self.gru, self.head = nn.GRU(48, 32, batch_first=True), nn.Linear(32, 20)

    def forward(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the symbols, and the best ones."""
        turned: Any = F.conv1d(wave.unsqueeze(1), self.waves, stride=32)
        power = turned[:, :33] ** 2 + turned[:, 33:] ** 2
        hidden = torch.relu(self.norm(self.conv(torch.log(power + 1e-6))))
        symbols = torch.log_softmax(self.head(self.gru(hidden.transpose(1, 2))[0]), -1)
        return symbols, symbols.argmax(-1)


class Messages(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A graph network: features gathered along edges, weighted, and added up at the nodes by scattering."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.weight, self.update = nn.Linear(32, 24), nn.Linear(32, 1), nn.Linear(40, 16)

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        """Return new features of the nodes."""
        pairs = torch.cat([features[edges[0]], features[edges[1]]], -1)
        weight = torch.sigmoid(self.weight(pairs))
        index = edges[1].unsqueeze(1).expand(-1, 24)
        received = torch.zeros(features.shape[0], 24).scatter_add(0, index, self.message(pairs) * weight)
        return torch.tanh(self.update(torch.cat([features, received], -1)))
