"""What looks like a secret is found by its name or form, and what does not is left alone."""

from __future__ import annotations

import hashlib
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.secret_rules import HINTS, MASK, is_secret_name, masked, redact, spans
from harness.evidence.io.known_secrets import compiled
from harness.workers.ground_truth import truth_frames
from harness.workers.netcheck import frames

VALUE = "Zx9q-secret-value"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXRleHQ"
KEY = "\n".join(
    ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"] * 3 + ["MzEfYyjiWA4R4w=="]
)
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{KEY}\n-----END RSA PRIVATE KEY-----\n"


def clean(text: str) -> str:
    return masked(text, spans(text))


FOUND = pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("TOKEN=abcdefgh12345678", "TOKEN=***"),
        ("export GITHUB_TOKEN='a b c'; next", "export GITHUB_TOKEN='***'; next"),
        ("AWS_SESSION_TOKEN: IQoJb3JpZ2luX2VjE/+==", "AWS_SESSION_TOKEN: ***"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+1", "AWS_SECRET_ACCESS_KEY=***"),
        ('CLIENT_SECRET="correct horse battery"', 'CLIENT_SECRET="***"'),
        ("{'client_secret': 'it\\'s mine', 'step': 3}", "{'client_secret': '***', 'step': 3}"),
        ('{"hf_token": "a \\" b", "loss": 0.5}', '{"hf_token": "***", "loss": 0.5}'),
        ('{"msg":"{\\"password\\": \\"a b c\\"}"}', '{"msg":"{\\"password\\": \\"***\\"}"}'),
        ('env["WANDB_API_KEY"] = b"a b"', 'env["WANDB_API_KEY"] = b"***"'),
        ("X-Api-Key: 12345678", "X-Api-Key: ***"),
        ("client-key-data: LS0tLS1CRUdJTiBSU0E=", "client-key-data: ***"),
        ("sentry dsn=https://abc@host/1", "sentry dsn=***"),
        ("Cookie: session=abc; theme=dark", "Cookie: ***"),
        ("Set-Cookie: session=abc; Path=/", "Set-Cookie: ***"),
        ("Authorization: Digest username=u, response=abc", "Authorization: Digest ***"),
        ('-H "Authorization: token abc123"', '-H "Authorization: token ***"'),
        ("authorization=abcdef", "authorization=***"),
        ("password: 1234", "password: ***"),
        ("train.py --hub-token abc --steps 3", "train.py --hub-token *** --steps 3"),
        ("mysql --password 'a b'", "mysql --password '***'"),
        ("train.py --hf_token abc --text_key body", "train.py --hf_token *** --text_key body"),
        (
            "Command '['t.py', '--token', 'a b', '--lr', '3']'",
            "Command '['t.py', '--token', '***', '--lr', '3']'",
        ),
        ('{"a":"[\\"--api-key\\", \\"s 3\\"]"}', '{"a":"[\\"--api-key\\", \\"***\\"]"}'),
        ('"--password",\n          "hunter2",', '"--password",\n          "***",'),
        ("  - --wandb-key\n  - abc1\n  - --seed", "  - --wandb-key\n  - ***\n  - --seed"),
        ("- name: myOtherApiKey\n  value: 'tiny secret'", "- name: myOtherApiKey\n  value: '***'"),
        ('{"name": "HF_TOKEN", "value": "x"}', '{"name": "HF_TOKEN", "value": "***"}'),
        ("token: |\n  abcdefgh12345678\nuser: u", "token: |\n  ***\nuser: u"),
        ('{"token": "0123456789abcdef"}', '{"token": "***"}'),
        ("//registry/:_authToken=abc", "//registry/:_authToken=***"),
        ("GET /x?sig=ab%2Fc&z=1", "GET /x?sig=***&z=1"),
        ("redis://:hunter2@cache/0", "redis://:***@cache/0"),
        ("https://u:p@ss:w@host/x", "https://u:***@host/x"),
        ("GET /ws?token=abc&n=1", "GET /ws?token=***&n=1"),
        (f"GITHUB ghp_{'a1B2' * 9} used", "GITHUB *** used"),
        (f"github_pat_{'a1B2_' * 9}", MASK),
        (f"hf_{'aB' * 17}", MASK),
        (f"sk-proj-{'a1B2' * 9}", MASK),
        ("xoxb-1234-5678-abcdefgh", MASK),
        ("AKIAIOSFODNN7EXAMPLE ASIAIOSFODNN7EXAMPLE", f"{MASK} {MASK}"),
        (f"glpat-{'a1B2' * 5}", MASK),
        (f"npm_{'a1B2' * 9}", MASK),
        (f"pypi-AgEIcHlwaS5vcmc{'a1B2' * 9}", MASK),
        (f"got {JWT}.", "got ***"),
        (
            PEM,
            f"-----BEGIN RSA PRIVATE KEY-----\n{'***' + chr(10)}"
            + "***\n" * 3
            + "-----END RSA PRIVATE KEY-----\n",
        ),
    ],
)


@FOUND
def test_secrets_are_found_by_name_or_form(text: str, expected: str) -> None:
    """Contract: the whole value is replaced, also with spaces, and nothing else."""
    assert clean(text) == expected
    assert clean(clean(text)) == clean(text)


@FOUND
def test_the_lines_around_a_secret_do_not_matter(text: str, expected: str) -> None:
    """Contract: a secret is found at the beginning of a line, after lines of any length.

    In the output of `env`, in scripts and in error messages, each line begins with a name.
    """
    lines = ("x", "USER=robot", "a line of more than 13 characters", "env:", "", "password", "at the end")
    for before in (line + end for line in lines for end in ("\n", "\r\n", "\n\n", "\n  ")):
        assert clean(f"{before}{text}\nnext line\n") == f"{before}{expected}\nnext line\n", repr(before)


_PIECES = st.sampled_from(
    [
        *"'\"`\\=:,-| \n",
        "--token",
        "--key ",
        "password",
        "Authorization",
        "Basic",
        "name",
        "value",
        "API_KEY",
        "x",
        "://",
        "@",
    ]
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_text_ending_within_secret_is_read_normally(text: str) -> None:
    """Contract: a pod's argument or log that ends with `--token "` once stopped the recording of evidence."""
    assert clean(clean(text)) is not None


@pytest.mark.parametrize("text", ['--token "', "--password '", "--key `", '--token \\"'])
def test_an_option_with_an_empty_value_has_no_secret(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "expected", "report"),
    [
        ("https://u:Staple9&#64;host/x", "https://u:***&#64;host/x", "NousResearch/hermes-agent #75476"),
        (
            "?next=https%3A%2F%2Fu%3AStaple9%40host",
            "?next=https%3A%2F%2Fu%3A***%40host",
            "the same, in a URL",
        ),
        (
            "TRACE https://token:abc@pkgs/simple/",
            "TRACE https://token:***@pkgs/simple/",
            "astral-sh/uv #13357",
        ),
        ("rtspt://user1:pass1@10.0.0.1/live", "rtspt://user1:***@10.0.0.1/live", "marss/aiortsp #14"),
        ("GET /ws?token=abc HTTP", "GET /ws?token=*** HTTP", "rigplane/rigplane-core #948"),
        (
            f"POST https://discord.com/api/webhooks/12/{'aB3-' * 17} failed",
            "POST https://discord.com/api/webhooks/12/*** failed",
            "alphaonedev/ai-memory-mcp #3697: the URL is the secret",
        ),
        (
            "https://x.webhook.office.com/webhookb2/11-22@33-44/IncomingWebhook/0a1b/5 x",
            "https://x.webhook.office.com/webhookb2/*** x",
            "alphaonedev/ai-memory-mcp #3697",
        ),
        (
            f"https://api.telegram.org/bot123456789:{'aB3-' * 9}/getMe",
            "https://api.telegram.org/bot***/getMe",
            "NousResearch/hermes-agent #75476",
        ),
        (
            "+ curl -s -u admin:hunter2 https://x",
            "+ curl -s -u admin:*** https://x",
            "actions/runner #507: set -x",
        ),
        (
            "+ docker login -u bob -p hunter2 ghcr.io",
            "+ docker login -u bob -p *** ghcr.io",
            "actions/runner #507",
        ),
        ("+ sshpass -p hunter2 ssh x", "+ sshpass -p *** ssh x", "actions/runner #507"),
        ("+ redis-cli -h c -a hunter2 ping", "+ redis-cli -h c -a *** ping", "actions/runner #507"),
        ("+ mysql -uroot -phunter2 db", "+ mysql -uroot -p*** db", "actions/runner #507"),
        (f"+ wandb login --relogin {'0a1b' * 10}", "+ wandb login --relogin ***", "actions/runner #507"),
        ("machine h login u password hunter2", "machine h login u password ***", "a .netrc file"),
    ],
)
def test_inputs_of_public_reports(text: str, expected: str, report: str) -> None:
    """Contract: URLs and commands in which other redactors missed a secret."""
    assert clean(text) == expected, report
    assert clean(expected) == expected


def test_the_lines_of_a_private_key_keep_their_prefixes() -> None:
    """Contract: the kubelet's times stay, so the log can be ordered. The end of the key can be missing."""
    stamped = "".join(f"2026-11-28T14:10:11.1Z {line}\n" for line in PEM.splitlines())
    for text in (stamped, "".join(stamped.splitlines(keepends=True)[:-1]) + "next line\n"):
        assert clean(text).count("2026-11-28T14:10:11.1Z ***\n") == 4
        assert "MIIE" not in clean(text)
    assert "next line\n" in clean(text)
    assert "MIIE" not in clean(repr(PEM))


ORDINARY = """
2026-11-28T14:10:11.123456789Z [rank0]: step 10 loss 1.234 tokens/s: 1,234.5 max_tokens=8 token_count: 12
{"token_count": 5, "secret_santa_loss": 0.5, "tokens": 1234, "loss/token": 0.1, "num_tokens": "12"}
{"token": " the", "logprob": -0.25} {"token":"unbelievable","id":1234}
eos_token='</s>' pad_token="[PAD]" bos_token: '<|endoftext|>', eos_token_id=2, image_token="<image>"
GPT2Tokenizer(special_tokens={'bos_token': '<|endoftext|>', 'unk_token': '<|endoftext|>'})
    client = Client(api_key=api_key, token=token, auth=self.auth)
    token = os.environ["HF_TOKEN"]
    raise ValueError(f"invalid token: {token}")
json.decoder.JSONDecodeError: Unexpected token: end
KeyError: 'HF_TOKEN'
RuntimeError: Error(s) in loading state_dict: Missing key(s) in state_dict: "layers.0.key.weight"
attention: key=768 query=768 value=768 secret=0.5 token: 3 cookie=1
Warning  Failed  kubelet  Error: couldn't find key token in Secret default/own
Warning  FailedMount  MountVolume.SetUp failed for volume "x" : secret "own" not found
kube-apiserver --authorization-mode=Node,RBAC --service-account-key-file=/etc/kubernetes/pki/sa.pub
--client-ca-file=/etc/kubernetes/pki/ca.crt --token-auth-file=/x --tls-private-key-file=/etc/a.key
docker.io/library/x@sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824
commit e47b8da2c0ffee00112233445566778899aabbcc uuid 123e4567-e89b-12d3-a456-426614174000
HF_TOKEN=$HF_TOKEN PASSWORD=${PASSWORD} api_key: $(cat /x) token: *** secretName: own PWD=/workspace
 45%|████▌     | 450/1000 [00:10<00:12, 44.1it/s, loss=1.2]
http://127.0.0.1:8080/metrics torchrun --rdzv-endpoint=10.0.0.1:29500 sk-learn-like-names-are-no-keys
tolerations: [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] key: nvidia.com/gpu
Post "https://jobset-webhook-service.jobset-system.svc:443/mutate?timeout=10s": EOF admission/webhook.go:123
curl --user-agent=torch:2 https://h:8443/a@b; ssh login node mkdir -p /x; docker login succeeded; mysql -p db
docker://registry:5000/image@sha256:0123 http://h:80/x%3Ay%40z https:%2F%2Fhost%2Fa discord.com/api/webhooks/
Traceback (most recent call last):
  File "/workspace/train.py", line 10, in <module>
NCCL INFO Bootstrap : Using eth0:10.244.1.5<0> [0] NCCL INFO comm 0x5581 rank 0 nranks 2 cudaDev 0 busId 1b000
@exit1 abcd1234 1
"""


@pytest.mark.parametrize("line", ORDINARY.strip("\n").splitlines())
def test_ordinary_text_stays_byte_for_byte(line: str) -> None:
    """Contract: logs, tracebacks, metrics, JSON, digests and messages of Kubernetes are not changed."""
    assert clean(line) == line
    assert clean(f"x\n{line}\n") == f"x\n{line}\n"


@given(st.binary(min_size=20, max_size=20), st.uuids(), st.floats(), st.integers())
def test_digests_and_numbers_are_no_secrets(
    raw: bytes, identity: uuid.UUID, number: float, count: int
) -> None:
    """Contract: also under a name of a secret, a number stays, because metrics have such names."""
    digest = hashlib.sha256(raw).hexdigest()
    text = f"image@sha256:{digest} {raw.hex()} {identity} token: {count} MY_TOKEN={number} secret={count}"
    assert clean(text) == text


METRICS = st.text(st.sampled_from("abktoken_/.secretkyapsword"), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(METRICS, st.integers(0, 9), st.floats(allow_nan=False)), max_size=30),
    st.integers(0, 2**64),
)
def test_no_frame_is_changed(rows: list[tuple[str, int, float]], nonce: int) -> None:
    """Contract: what ranks write for the harness stays, whatever name its base64 text ends with."""
    payload = {"k": "rows", "r": 0, "a": "x", "q": 0, "n": 0, "rows": [[*row, 1] for row in rows]}
    lines = [truth_frames.encode(str(nonce), payload), *frames.encode(str(nonce), payload)]
    lines += [
        truth_frames.encode(str(nonce), payload, truth_frames.PROCESS_MARK),
        f"{truth_frames.EXIT_MARK}{nonce} 1",
    ]
    text = "".join(f"2026-11-28T14:10:11.1Z {line}\n" for line in lines)
    assert clean(text) == text


def test_frame_that_ends_like_name_is_not_changed() -> None:
    """Contract: base64 text that ends with "token=" or "key=" does not make the frame's signature a value."""
    for end in ("token=", "AccessKey=", "myPassword==", "apikey="):
        line = f"@truth1 {'A' * 12}{end} {'0a' * 16}"
        assert clean(line) == line


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-api-key", "abc", MASK),
        ("dsn", "postgres://u:p@h/d", MASK),
        ("cookie", "a=b", MASK),
        ("tracker.api_key", 1234, MASK),
        ("hub.token", "abc", MASK),
        ("clientSecret", "abc", MASK),
        ("client-key-data", "LS0t", MASK),
        ("authorization", "Bearer abcdefgh", MASK),
        ("db_url", "postgres://u:p@h/d", "postgres://u:***@h/d"),
        ("note", f"use ghp_{'a1B2' * 9}", "use ***"),
        ("max_tokens", 8, 8),
        ("token_count", "8", "8"),
        ("secret_santa_loss", 0.5, 0.5),
        ("token", 5, 5),
        ("tokenizer", "gpt2", "gpt2"),
        ("secretName", "own", "own"),
        ("topologyKey", "kubernetes.io/hostname", "kubernetes.io/hostname"),
        ("password", None, None),
        ("use_auth_token", True, True),
    ],
)
def test_a_setting_is_redacted_by_its_name(name: str, value: object, expected: object) -> None:
    """Contract: the tracker's pages show numbers and places, but no secret."""
    assert redact(name, value) == expected


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "MY_KEY", "X-Api-Key", "DB_PASSWORD_1", "dsn", "sessionToken", "AUTH", "session_id"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "tokens/s", "monkey", "token_count", "KEYBOARD", "author", "RANK"]
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


PIECES = (
    *(
        "Bearer ",
        "basic\n",
        "Authorization",
        ": ",
        "=",
        " ",
        "\n",
        '"',
        "\\",
        "'",
        "mlpi_",
        "mlps_x9",
        "cookie",
    ),
    *(
        "API_KEY",
        "my_apikey",
        "aPi_ToKeN",
        "ACCESSKEY",
        "secret_key",
        "AuthToken",
        "PASSWORD",
        "passwd",
        "hf_token",
    ),
    *(
        "token",
        "secret",
        "TOKEN",
        "name",
        "value",
        "--token ",
        "--api-key ",
        "-",
        "?sig",
        "dsn",
        "auth",
        "_KEY",
        "api key",
    ),
    *(
        "PASS",
        "tokens",
        "key",
        "http",
        "://",
        "user",
        ":",
        "@",
        "host",
        "hunter2secret",
        "_",
        "1",
        ";",
        "digest ",
    ),
    *(
        "&",
        ",",
        "é",
        "ı",
        "ſ",
        "K",
        "\v",
        "\xa0",
        "12 34",
        "0.5",
        "|\n  ",
        JWT,
        "-----BEGIN PRIVATE KEY-----",
        "`",
        "&#64;",
        "%2F%2F",
        "curl ",
        "-u ",
        "docker login ",
        "-p ",
        "b",
        "]",
        "=>",
    ),
)


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_the_hints_match_every_text_with_a_secret(pieces: list[str]) -> None:
    """Contract: a text in which the pattern for RE2 finds nothing has no secret."""
    text = "".join(pieces)
    if spans(text):
        assert compiled(HINTS.encode()).search(text.encode())


@pytest.mark.parametrize(
    "unit",
    [
        'token="',
        "a.",
        "eyJaaaaaaa_",
        "-----BEGIN PRIVATE KEY-----\n",
        "cookie: <",
        "://a:",
        "name: x_key\n",
        "key='",
        '\\\\"',
        "\\",
        "curl -u ",
        "docker login ",
        "machine a login ",
        "%2F%2Fa:",
    ],
)
def test_time_is_linear(unit: str) -> None:
    """Contract: ten times as much text takes about ten times as long, whatever is repeated."""

    def seconds(count: int) -> float:
        text = unit * count
        start = time.process_time()
        clean(text)
        return time.process_time() - start

    seconds(100)
    small = min(seconds(2_000) for _ in range(3))
    assert seconds(40_000) < 100 * small + 0.5
