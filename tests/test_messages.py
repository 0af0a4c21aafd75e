"""Every message of every inbox survives the wire; settings survive the command line."""

import inspect
import tempfile
import typing
from typing import Any

import msgspec
import pytest

from radixserve import messages
from radixserve.channel import Inbox, Outbox
from radixserve.config import CHOICES, PARTS, Config, fields_of, flag, parse
from radixserve.launch import FLAGS
from radixserve.messages import Namespace, Sampling, TokenLogprobs, pack, unpack

INBOXES = {
    name: getattr(messages, name) for name in ("ToScheduler", "ToWorker", "ToTokenizer", "ToLaunch")
}


def example(kind: Any) -> Any:
    """A value of a type, different from its default where it has one."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
        return kind(**{f: example(t) for f, t in typing.get_type_hints(kind).items()})
    if origin is tuple:
        return (example(args[0]),) if args[-1] is ... else tuple(example(a) for a in args)
    if origin is dict:
        return {example(args[0]): example(args[1])}
    if args:
        return example(args[0])
    return {str: "text", int: 7, float: 0.5, bool: True, bytes: pack([1, 2, 2**31 - 1])}[kind]


@pytest.mark.parametrize("inbox", INBOXES)
def test_every_message_round_trips(inbox: str) -> None:
    kinds = typing.get_args(INBOXES[inbox])
    sent = [example(kind) for kind in kinds]
    data = msgspec.msgpack.encode(sent)
    assert msgspec.msgpack.decode(data, type=list[INBOXES[inbox]]) == sent  # type: ignore[valid-type]
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


def test_messages_go_through_a_socket_in_order() -> None:
    with tempfile.TemporaryDirectory() as run_dir:
        outbox: Outbox[messages.ToScheduler] = Outbox(run_dir, "scheduler")
        inbox: Inbox[messages.ToScheduler] = Inbox(run_dir, "scheduler", messages.ToScheduler)
        sent: list[messages.ToScheduler] = [messages.Abort(f"{i}") for i in range(100)]
        for at in range(0, 100, 10):
            outbox.send(sent[at : at + 10])
        got: list[messages.ToScheduler] = []
        while len(got) < 100 and (more := inbox.receive(5)):
            got += more
        assert got == sent
        assert inbox.receive(0) == []
        outbox.close()
        inbox.close()


def test_ids_are_packed_as_little_endian_int32() -> None:
    assert pack([1, 258]) == b"\1\0\0\0\2\1\0\0"
    assert unpack(bytearray(pack(range(1000)))) == list(range(1000))


def test_namespaces_are_structured() -> None:
    assert Namespace(tenant="x") != Namespace(salt="x")
    assert len({Namespace(salt="x"), Namespace(salt="x"), Namespace(adapter="x")}) == 2


@pytest.mark.parametrize(
    ("field", "value", "needs"),
    [("presence_penalty", 0.1, True), ("repetition_penalty", 1.2, True), ("top_k", 5, False)],
)
def test_only_penalties_need_the_history(field: str, value: float, needs: bool) -> None:
    assert Sampling(seed=0, **{field: value}).needs_history is needs  # type: ignore[arg-type]
    assert TokenLogprobs(-1.0).top == ()


TEXTS = {"tenant_quotas": "a=16:32,b=:64"}  # settings whose text has a form of its own


def test_every_setting_has_a_flag_and_reaches_its_field() -> None:
    for key, part in PARTS.items():
        for name, (kind, help_text, default) in fields_of(part).items():
            assert help_text, f"{name} has no help"
            text = TEXTS.get(name) or CHOICES.get(name, ("x", "y"))[1]
            value = {int: 3, float: 0.5, str: text, bool: True}[kind]
            argv = [flag(name)] if kind is bool else [flag(name), str(value)]
            got = getattr(getattr(parse(argv, {}), key), name)
            assert got == value != default


def test_settings_reach_a_child_process_whole() -> None:
    config = parse(["--port", "8", "--page-size", "32", "--disable-radix-cache"], {})
    assert Config.decode(config.encode()) == config


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "70000"],
        ["--page-size", "0"],
        ["--device", "abacus"],
        ["--no-such-flag"],
        ["--tenant-quotas", "a=1"],
        ["--tenant-quotas", "a=5:4"],
        ["--pin-budget", "1.5"],
    ],
)
def test_wrong_settings_end_with_a_message(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse(argv, {})
    assert end.value.code == 2
    assert argv[0] in capsys.readouterr().err.splitlines()[-1], "the message names the flag"


@pytest.mark.parametrize("name", ["tool-call-parser", "reasoning-parser", "schedule-policy"])
def test_a_name_that_does_not_exist_is_refused(name, capsys):
    with pytest.raises(SystemExit, match="2"):
        parse([f"--{name}", "no-such"], FLAGS)
    assert f"argument --{name}: invalid choice: 'no-such'" in capsys.readouterr().err
    assert parse(["--tool-call-parser", "hermes"], FLAGS).server.tool_call_parser == "hermes"
