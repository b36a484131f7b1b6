"""Files on disk: reading and checking a model, writing one so that nothing is lost, and whose data files are whose."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.files.loading import load as load
    from amp_transpiler.files.saving import save as save
else:
    __getattr__, __dir__ = lazy_names(__name__)
