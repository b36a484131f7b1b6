"""What layers note of a program while they build it follows its copies, and leaves the model alone."""

from amp_transpiler.paddle import static
from amp_transpiler.paddle.framework.build_record import build_record


def test_a_program_has_one_record():
    program = static.Program()
    assert build_record(program) is build_record(program)
    assert build_record(program) is not build_record(static.Program())


def test_a_copy_has_the_notes_and_was_not_drawn_yet():
    program = static.Program()
    record = build_record(program)
    record.drawn.append("w")
    record.drawn_with = (1, 2)
    copied = build_record(program.clone())
    assert (copied.drawn, copied.drawn_with) == (["w"], None)
    copied.drawn.append("b")
    assert record.drawn == ["w"]


def test_a_program_that_goes_back_has_the_notes_of_then():
    program = static.Program()
    earlier = program.clone()
    build_record(program).custom_gradients.append((["x"], ["y"], print))
    program.become(earlier)
    assert build_record(program).custom_gradients == []
