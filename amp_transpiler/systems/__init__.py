"""Five systems of mixed precision: a folder each, with its rules, its front door and its views of the table."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.choice import Request as Request, choose_policy as choose_policy
    from amp_transpiler.systems.registry import SYSTEMS as SYSTEMS, rules_class as rules_class
else:
    __getattr__, __dir__ = lazy_names(__name__)
