"""What `harness train` was asked for, and what follows for the command of its pods."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from kubernetes.utils.quantity import parse_quantity

from harness.core.errors import UsageError
from harness.launch.names import LOCAL_IMAGE
from harness.launch.user_secrets import Wanted
from harness.launch.workloads import claims
from harness.workers.training import options, texts
from harness.workers.training.object_store import located

PORT = 29500
SMOKE = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
"""The guide's own flags of train.py."""
TEXTS = ("train.jsonl", "val.jsonl")
MADE_TEXTS = "harness-texts"
"""The folder on the volume of the outputs that made texts are in, where they have no volume of their own."""
_OWN = {"--run-name": "run", "--data-dir": "data_dir", "--out-dir": "out_dir", "--device": "device"}
"""Options that the launch sets → the trainer's names of their values."""


class _Refusing(argparse.ArgumentParser):
    """Tells what is wrong by a UsageError."""

    def error(self, message: str) -> NoReturn:
        hint = "`harness train -- --help` lists the trainer's options"
        raise UsageError(f"an option of the trainer, after `--`: {message}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to train, and on how many pods."""

    kind: Literal["statefulset", "job"] = "statefulset"
    replicas: int = 4
    max_replicas: int | None = None
    """Most pods that the StatefulSet may be scaled to while it trains. None: the number of nodes is fixed."""
    processes: int = 1
    """Ranks of each pod."""
    gpus: int | None = None
    """GPUs of each pod. None: it trains on CPUs."""
    memory: str | None = None
    """Most memory of each pod, as Kubernetes writes it. None: 8Gi on CPUs, no limit with GPUs."""
    restarts: int = 3
    """How often each rank may run again, whatever ended it."""
    rdzv: Literal["c10d", "etcd"] = "c10d"
    """Where torchrun's nodes meet: in node 0, or in an etcd that outlives each of them."""
    rdzv_endpoint: str | None = None
    """HOST:PORT of an etcd that is there, with its API v2. None: one of this launch alone."""
    run: str = "train"
    """The folder of the run below /out."""
    smoke: bool = False
    """train.py, the guide's smoke test, in place of train_framework.py."""
    trainer: tuple[str, ...] = ("training.train_framework",)
    """The module that is run, and words before its options. Tests run a faulty one
    (harness/workers/training/faulty.py).
    """
    options: tuple[str, ...] = ()
    """More options of the trainer."""
    image: str = LOCAL_IMAGE
    data: Path | None = None
    """A folder here with train.jsonl and val.jsonl. None: texts of a known entropy are made."""
    volumes: str | None = None
    """A folder of a kind cluster that stays, for later launches. None: one of this launch alone."""
    storage_class: str | None = None
    claims_namespace: str | None = None
    synthetic: bool = False
    """Train on made texts, which need no claim of their own, also where the claims are the user's."""
    secrets: tuple[Wanted, ...] = ()
    """Secrets of the user whose keys become variables of the ranks."""
    reach: float | None = None
    """How far above the known entropy of the texts the loss may end, as a fraction. None: any."""
    same_as: tuple[str, str] | None = None
    """A bundle, and the digest of the weights that this training must end with, which are that one's."""
    upload: str | None = None
    """s3://BUCKET/PREFIX that the run is sent to when the training has ended."""
    resume_from: str | None = None
    """s3://BUCKET/PREFIX of a run that is brought back before the training."""

    def __post_init__(self) -> None:
        claims.check(self.volumes, self.storage_class, self.claims_namespace, existing=False)
        self._transferable()
        for name in ("run", "volumes"):
            value = getattr(self, name)
            if value is not None and (not value or "/" in value or value.startswith(".")):
                raise UsageError(f"--{name}: the name of one folder is expected; seen {value!r}")
        if self.rdzv_endpoint is not None:
            host, _, port = self.rdzv_endpoint.rpartition(":")
            if self.rdzv != "etcd" or not host or not port.isdecimal():
                raise UsageError(
                    f"--rdzv-endpoint: HOST:PORT of an etcd is expected, with --rdzv etcd; seen "
                    f"{self.rdzv_endpoint!r} with --rdzv {self.rdzv}"
                )
        self._check_range()
        if self.memory is not None and not _positive(self.memory):
            raise UsageError(f"--memory: a quantity such as 8Gi is expected; seen {self.memory!r}")
        taken = sorted({option.partition("=")[0] for option in self.options} & {"--run", *_OWN})
        if taken:
            raise UsageError(
                f"{', '.join(taken)}: the launch sets it",
                hint="--run and --gpus-per-pod come before `--`; /data and /out are volumes",
            )
        names = [one.name for one in self.secrets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"--secret {twice[0]}: one is expected; it was named {names.count(twice[0])} times"
            )
        if not self.smoke:
            self._understood()
        if self.data is not None:
            self._data_fits(self.data)

    def _data_fits(self, data: Path) -> None:
        """Refuse a folder of texts that lacks a file or that this launch would not use. Raises UsageError."""
        if self.smoke:
            raise UsageError("--data is not for --smoke: the smoke test makes its own data")
        if self.storage_class or self.claims_namespace:
            raise UsageError("--data is for kind: put the texts into datasets-pvc of the cluster yourself")
        if self.synthetic:
            raise UsageError(
                "--data and --synthetic exclude each other: one copies your texts, the other generates texts"
            )
        try:
            missing = [name for name in TEXTS if not (data / name).is_file()]
            entropy = (data / "source.json").is_file()
        except OSError as error:
            raise UsageError(f"--data {data} cannot be read: {error.strerror}") from None
        if missing:
            raise UsageError(f"--data {data}: {' and '.join(TEXTS)} are expected; {missing[0]} is not there")
        if self.reach is not None and not entropy:
            raise UsageError(
                f"--reach needs texts of a known entropy; --data {data} has no source.json",
                hint="leave out --reach, or make the texts with `python -m training.source`",
            )

    def examine_data(self) -> None:
        """Refuse texts of --data that the trainer would refuse, in its own words. Reads all of them.

        Raises UsageError.
        """
        if self.data is None:
            return
        given = self._parsed()
        bytes_ = not (given.model or given.model_local_dir or given.tokenizer_local_dir)
        for name in TEXTS:
            path = self.data / name
            try:
                texts.examine(path, given.text_field, given.context if bytes_ and name == TEXTS[0] else None)
            except ValueError as error:
                raise UsageError(f"--data: {error}") from None
            except OSError as error:
                raise UsageError(f"--data: {path} cannot be read: {error.strerror}") from None

    def _check_range(self) -> None:
        """Raise UsageError where the number of nodes cannot be a range."""
        most = self.max_replicas
        if most is None:
            return
        if self.kind != "statefulset":
            raise UsageError("--max-replicas applies only to --kind statefulset: a Job is not scaled")
        if self.smoke:
            raise UsageError("--max-replicas needs checkpoints to go on from, and the smoke test writes none")
        if self.same_as is not None:
            raise UsageError("--same-as compares every bit, which another number of ranks does not keep")
        if most < self.replicas:
            raise UsageError(
                f"--max-replicas: {self.replicas} or more are expected, as --replicas says; found {most}"
            )

    def _transferable(self) -> None:
        """Refuse what names no storage, or has nothing to transfer. Raises UsageError."""
        for option, url in self.transfers():
            if self.smoke:
                raise UsageError(f"{option} is about checkpoints, and the smoke test writes none")
            try:
                located(url)
            except ValueError as error:
                raise UsageError(f"{option}: {error}", hint="the prefix is the folder of one run") from None

    def _understood(self) -> None:
        """Refuse what the trainer would refuse in every pod, again and again. Raises UsageError."""
        own = self._own()
        found = self._parsed()
        # The trainer takes shortened options, too, and of two the last: --dat=/x changes --data-dir.
        for name, value in zip(own[::2], own[1::2], strict=True):
            if str(getattr(found, _OWN[name])) != value:
                raise UsageError(f"{name} is set by the launch; the options after `--` change it to another")

    def _parsed(self) -> argparse.Namespace:
        return options.sensible(options.parser(_Refusing), [*self._own(), *self.options])

    def transfers(self) -> list[tuple[Literal["--upload", "--resume-from"], str]]:
        """Return the options that name S3 storage, with their URLs."""
        found: list[tuple[Literal["--upload", "--resume-from"], str | None]]
        found = [("--upload", self.upload), ("--resume-from", self.resume_from)]
        return [(option, url) for option, url in found if url is not None]

    @property
    def hub_model(self) -> str | None:
        """Return the model that the ranks fetch from the hub, or None."""
        if self.smoke:
            return None
        found = self._parsed()
        return str(found.model) if found.model and not found.local_files_only else None

    def _own(self) -> list[str]:
        device = "cuda" if self.gpus else "cpu"
        return ["--run-name", self.run, "--data-dir", "/data", "--out-dir", "/out", "--device", device]

    @property
    def needs_models(self) -> bool:
        """Return whether a word of the trainer names a folder of the claim for models."""
        folder = claims.CLAIMS[claims.MODELS]
        values = (word.rpartition("=")[2] for word in (*self.trainer, *self.options))
        return any(value == folder or value.startswith(f"{folder}/") for value in values)

    def makes_texts(self, *, printed: bool = False) -> bool:
        """Return whether the pods make the texts. Those of printed manifests do so only where asked to."""
        return self.synthetic or not (printed or self.smoke or self.data or self.claims_namespace)

    def mounts(self, *, printed: bool = False) -> tuple[claims.Mount, ...]:
        """Return what the pods mount. Volumes of a user are read-only, except that of the outputs."""
        if self.smoke:
            return ()
        if not (printed or self.storage_class or self.claims_namespace):
            return tuple(claims.Mount(claim, path) for claim, path in claims.CLAIMS.items())
        data, models = claims.CLAIMS[claims.DATASETS], claims.CLAIMS[claims.MODELS]
        texts = claims.Mount(claims.DATASETS, data, read_only=True)
        if self.makes_texts(printed=printed):
            texts = claims.Mount(claims.OUTPUTS, data, folder=MADE_TEXTS)
        found = [texts, claims.Mount(claims.OUTPUTS, claims.CLAIMS[claims.OUTPUTS])]
        theirs = self.claims_namespace is not None and not printed
        if self.needs_models or theirs:
            optional = not self.needs_models
            found.append(claims.Mount(claims.MODELS, models, read_only=True, optional=optional))
        return tuple(found)

    @property
    def brings_etcd(self) -> bool:
        """Return whether the launch has an etcd of its own."""
        return self.rdzv == "etcd" and self.rdzv_endpoint is None

    def words(self) -> list[str]:
        """Return what runs in each pod: training.sh with options of torchrun, the trainer and its options."""
        head = ["sh", "/workspace/training/training.sh", f"--nproc-per-node={self.processes}", "-m"]
        if self.smoke:
            return [*head, "training.train", *SMOKE.split(), *self.options]
        return [*head, *self.trainer, *self._own(), *self.options]

    def environment(self) -> dict[str, str]:
        """Return the variables of training.sh and of NCCL."""
        first = "train-llm-0.train-rdzv"
        nccl = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} if self.gpus else {}
        return {
            "NNODES": f"{self.replicas}" if self.max_replicas is None else f"1:{self.max_replicas}",
            "NPROC_PER_NODE": f"{self.processes}",
            "MASTER_ADDR": first,
            "MASTER_PORT": f"{PORT}",
            "RDZV_BACKEND": "etcd-v2" if self.rdzv == "etcd" else "c10d",
            "RDZV_ENDPOINT": self.rdzv_endpoint or ("train-etcd:2379" if self.rdzv == "etcd" else ""),
            "RUN_ID": self.run,
            "RESTARTS": f"{self.restarts}",
            "TRAINING_SOURCE": "1" if self.makes_texts() else "0",
            **nccl,
        }


def _positive(quantity: str) -> bool:
    try:
        return bool(parse_quantity(quantity) > 0)
    except ValueError:
        return False
