"""Windows of convolutions and pools whose shapes and attributes contradict each other."""

import pytest

from amp_transpiler.autodiff.refusals import SizesUnknown
from amp_transpiler.autodiff.windows import Window, window_of


class Node:
    """The attributes of a node."""

    def __init__(self, **attributes):
        self._attributes = attributes

    def attribute(self, name, default=None):
        return self._attributes.get(name, default)


@pytest.mark.parametrize(
    ("kernel", "attributes", "named"),
    [
        ([3], {}, "kernel"),
        ([3, 3, 3], {"auto_pad": "SAME_UPPER"}, "kernel"),
        ([3, 3], {"strides": [2]}, "strides"),
        ([3, 3], {"strides": [2], "auto_pad": "SAME_LOWER"}, "strides"),
        ([3, 3], {"dilations": [1, 1, 1]}, "dilations"),
        ([3, 3], {"pads": [1, 1]}, "end"),
        ([3, 3], {"pads": [1, 1, 1, 1, 1]}, "end"),
    ],
)
def test_numbers_of_other_axes_are_refused(kernel, attributes, named):
    with pytest.raises(SizesUnknown, match=f"^{named} must have a number for each of 2 spatial axes"):
        window_of(Node(**attributes), (8, 8), kernel)


@pytest.mark.parametrize(("inputs", "outputs", "named"), [([8], [6, 6], "inputs"), ([8, 8], [6], "outputs")])
def test_sizes_of_other_axes_are_refused(inputs, outputs, named):
    window = Window((3, 3), (1, 1), (1, 1), (0, 0), (0, 0))
    assert window.unused([8, 8], [6, 6]) == (0, 0)
    with pytest.raises(SizesUnknown, match=f"^{named} must"):
        window.unused(inputs, outputs)
