"""A secret put in is nowhere in what comes out, in any of the forms it takes on its way."""

import base64
import importlib
import inspect
import json
import pkgutil
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import secret_rules
from harness.evidence import Redactor, schema
from harness.evidence.io.redaction import secrets_in

SECRET = 's3cr/et+k"ey=äöü'
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=6, max_size=24)


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET, safe=""),
        json.dumps(SECRET)[1:-1],
        json.dumps(json.dumps(SECRET)[1:-1])[1:-1],
        json.dumps(SECRET, ensure_ascii=False)[1:-1],
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    ],
)
def test_every_form_of_a_secret_is_replaced(form):
    """Contract: plain, URL-quoted, JSON-escaped and base64 forms become ***."""
    redacted = Redactor([SECRET]).text(f"before {form} after")
    assert form not in redacted
    assert redacted.startswith("before ***")


@given(SECRETS, st.binary(max_size=5), st.binary(max_size=5))
def test_no_base64_around_a_secret_gives_it_away(secret, before, after):
    """Contract: inside longer base64 (user:password, a Secret) a secret cannot be decoded back."""
    secret = secret * 2
    encoded = base64.b64encode(before + secret.encode() + after).decode()
    redacted = Redactor([secret]).text(encoded)
    assert redacted != encoded
    assert encoded[4:-4] not in redacted


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ('{"authorization": "Basic dXNlcjpwYXNz"}', "dXNlcjpwYXNz"),
        ("export PLUTO_API_KEY=topsecret1", "topsecret1"),
        ("PLUTO_API_TOKEN: 'topsecret2'", "topsecret2"),
        ("key mlpi_0aB1-c.d used", "mlpi_0aB1"),
        ("https://user:hunter2@host/path", "hunter2"),
    ],
)
def test_shapes_of_secrets_need_not_be_known(text, gone):
    """Contract: what looks like a key, a token or a password is replaced without being told."""
    assert gone not in Redactor().text(text)


def test_an_env_entry_of_a_pod_loses_its_value():
    """Contract: `{name: X_API_KEY, value: v}` of a pod spec is written without v; others stay."""
    spec = {
        "env": [{"name": "MY_API_KEY", "value": "plain"}, {"name": "RANK", "value": "1"}],
        "replicas": 1234,
    }
    redactor = Redactor(["1234"])
    assert json.loads(compact(spec, redactor) or "") == redactor.value(spec)
    assert redactor.value(spec) == {
        "env": [{"name": "MY_API_KEY", "value": "***"}, {"name": "RANK", "value": "1"}],
        "replicas": 1234,
    }


def test_secrets_can_be_added_unless_too_short():
    """Contract: `add` counts from then on; fewer than 4 characters are no secret."""
    redactor = Redactor(["abc"])
    assert redactor.text("abc longsecret") == "abc longsecret"
    redactor.add("longsecret")
    assert redactor.text("abc longsecret") == "abc ***"


@pytest.mark.parametrize(
    "text", ["loss/node0 0.5", "step 3 of 10", "docker.io/library/x@sha256:0123", "rank: 1"]
)
def test_innocent_text_stays(text):
    """Contract: evidence is not eaten by the redaction."""
    assert Redactor(["hunter2hunter2"]).text(text) == text


@pytest.mark.parametrize("name", ["HF_TOKEN", "MY_KEY", "DB_PASSWORD_1", "CLIENT_SECRET", "token"])
def test_env_entries_with_secret_names_are_redacted(name):
    """Contract: the value of a variable that is named like a secret is not in a recorded pod."""
    spec = {"env": [{"name": name, "value": "x"}, {"name": "MAX_TOKENS", "value": "8"}]}
    assert json.loads(compact(spec, Redactor()) or "")["env"][0]["value"] == "***"
    assert [entry["value"] for entry in Redactor().value(spec)["env"]] == ["***", "8"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--token", "a b", "--lr", "3"], ["--token", "***", "--lr", "3"]),
        (["--hf_token", 'it"s'], ["--hf_token", "***"]),
        (["--eos_token", "</s>", "--text-key", "body"], None),
        (["--api-key", "--verbose", "--token"], None),
        (["train.py", '--token "'], None),
    ],
)
def test_argument_after_option_of_secret_is_redacted(arguments, expected):
    """Contract: openclaw/openclaw #75095, slopus/happy #1297: the value is a list item of its own."""
    spec = {"containers": [{"args": arguments}]}
    found = compact(spec, Redactor())
    wanted = {"containers": [{"args": expected or arguments}]}
    assert Redactor().value(spec) == wanted
    assert (json.loads(found) if found else wanted) == wanted


REFERENCE = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "own", "key": "token"}}}
VALUED = {"name": "HF_TOKEN", "value": 'x "y" \\'}


@pytest.mark.parametrize(
    ("entry", "quick"),
    [
        (REFERENCE, True),
        (VALUED, True),
        ({**VALUED, "name": "RANK"}, True),
        ({**VALUED, "name": "RANK", "value": "API_KEY=abc"}, False),
        ({**VALUED, "value": "API_KEY=abc"}, True),
        ({**REFERENCE, "value": "x"}, False),
        ({"value": "x", **REFERENCE}, False),
        ({"value": "x", "name": "HF_TOKEN"}, False),
        ({**VALUED, "also": [VALUED]}, False),
        ({"name": "HF_TOKEN", "valueFrom": {"own": {"name": "A_KEY", "value": "x"}}}, False),
        ({"name": "HF_TOKEN", "value": ["known"]}, False),
    ],
)
def test_quick_way_is_as_strict_as_slow_one(entry, quick):
    """Contract: JSON text is redacted as the value would be, or not at all. It is for pods."""
    spec = {"env": [{"name": "RANK", "value": "1"}, entry, REFERENCE, VALUED]}
    redactor = Redactor(["known"])
    found = compact(spec, redactor)
    assert (found is not None) is quick
    assert found is None or json.loads(found) == redactor.value(spec)


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["RANK", "HF_TOKEN", "MY_API_KEY", "a secret", "pluto", ""]),
        "value": st.sampled_from(
            ["", "1", "API_KEY=abc", "known", '"', "\\", "***", "://u:pw@h", "{", 7, None]
        ),
        "key": st.sampled_from(["token", "x"]),
    },
)


@given(
    st.recursive(
        ENTRIES,
        lambda inner: (
            st.lists(inner | st.sampled_from(["--token", "--key", "x", "-y", '"']), max_size=4)
            | st.dictionaries(
                st.sampled_from(["env", "valueFrom", "value", "name", "API_KEY"]), inner, max_size=3
            )
        ),
    )
)
def test_the_quick_way_never_differs(value):
    """Contract: whatever is nested in whatever, and in any order."""
    redactor = Redactor(["known"])
    found = compact(value, redactor)
    assert found is None or json.loads(found) == redactor.value(value)


def compact(value, redactor: Redactor) -> str | None:
    """Redact as a writer does."""
    return redactor.encoded(json.dumps(value, separators=(",", ":")))


PIECES = (
    *(
        "Bearer ",
        "Authorization",
        ": ",
        "=",
        " ",
        "\n",
        "\n",
        "\n",
        '"',
        "\\",
        "'",
        "mlpi_x9",
        "API_KEY",
        "hf_token",
    ),
    *(
        "PASSWORD",
        "tokens",
        "key",
        "http",
        "://",
        "user",
        ":",
        "@",
        "host",
        "hunter2secret",
        "hunter2",
        "secret",
    ),
    *(
        "&",
        ",",
        "é",
        "😀",
        "ſ",
        "\udc80",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "step 1 loss 2\n",
    ),
)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_only_lines_without_secrets_are_skipped_for_speed(pieces):
    """Contract: text is redacted as if every rule were tried on all of it."""
    text, redactor = "".join(pieces), Redactor(["hunter2secret"])
    found = [*redactor.search.known.spans(text), *secret_rules.spans(text)]
    assert redactor.text(text) == secret_rules.masked(text, found)


def test_secrets_in_a_script_are_found_in_linear_time():
    """Contract: a long name that is not one does not take the square of its length."""
    assert secrets_in("a." * 200_000 + ' X_TOKEN=abc PASSWORD="a b" KEY=$KEY http://u:pw@h') == {
        "abc",
        "a b",
        "pw",
    }


def test_the_fields_of_the_evidence_are_no_secrets():
    """Contract: no field of a record has a name whose value would be replaced. Judges read the values."""
    for module in pkgutil.iter_modules(schema.__path__, f"{schema.__name__}."):
        for name, record in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            fields = getattr(record, "model_fields", {})
            assert [field for field in fields if secret_rules.denotes_value(field)] == [], name
