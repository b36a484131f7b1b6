"""RAF's autocast: families of operators, rules, casting rules of the user's own, and `autocast`."""

from typing import TYPE_CHECKING

from amp_transpiler.lazy import lazy_names

if TYPE_CHECKING:
    from amp_transpiler.systems.raf.casting_rules import CustomTypeHint as CustomTypeHint, casting_rule as casting_rule
    from amp_transpiler.systems.raf.conversion import autocast as autocast
    from amp_transpiler.systems.raf.families import FAMILIES as FAMILIES, Family as Family
    from amp_transpiler.systems.raf.rules import RafRules as RafRules
else:
    __getattr__, __dir__ = lazy_names(__name__)
