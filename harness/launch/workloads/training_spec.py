"""The options of `harness train`, their validation, and the pods' command and environment."""

from __future__ import annotations

import argparse
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from kubernetes.utils.quantity import parse_quantity

from harness.core.errors import UsageError
from harness.core.writable import exists
from harness.launch.labels import LOCAL_IMAGE
from harness.launch.user_secrets import Wanted
from harness.launch.workloads import training_volumes
from harness.workers.training import documents, options, token_sequences
from harness.workers.training.object_store import located

PORT = 29500
SMOKE = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
"""The smoke test's options for train.py."""
MEMORY = "8Gi"
"""The default memory limit of pods that train on CPUs."""
GENERATED_TEXTS = "harness-texts"
"""The folder on the output volume for generated texts, if there is no separate volume for texts."""
_OWN = {"--run-name": "run", "--data-dir": "data_dir", "--out-dir": "out_dir", "--device": "device"}
"""Maps each trainer option that the launch itself sets to its name in the parsed arguments."""


class _Refusing(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of exiting."""

    def error(self, message: str) -> NoReturn:
        hint = "list the trainer's options with `harness train -- --help`"
        raise UsageError(f"invalid trainer option after `--`: {message}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """The options of `harness train`."""

    kind: Literal["statefulset", "job"] = "statefulset"
    replicas: int = 4
    max_replicas: int | None = None
    """The maximum number of pods to which the StatefulSet can be scaled. None means a fixed number."""
    processes: int = 1
    """The number of ranks per pod."""
    gpus: int | None = None
    """The number of GPUs per pod. None means training on CPUs."""
    memory: str | None = None
    """The memory limit of each pod, as a quantity. None means 8Gi on CPUs, and no limit with GPUs."""
    restarts: int = 3
    """The number of times that each rank may restart, for any reason."""
    rdzv: Literal["c10d", "etcd"] = "c10d"
    """The rendezvous backend: c10d on node 0, or an etcd, which survives the loss of any node."""
    rdzv_endpoint: str | None = None
    """HOST:PORT of an existing etcd with API v2. None means that the launch creates an etcd."""
    run: str = "train"
    """The name of the run's folder in /out."""
    smoke: bool = False
    """Whether to run the smoke test train.py instead of train_framework.py."""
    trainer: tuple[str, ...] = ("training.train_framework",)
    """The module to run, and the arguments that precede its options.

    Tests run a faulty trainer (harness/workers/training/faulty.py).
    """
    options: tuple[str, ...] = ()
    """The trainer's options, which the user gives after `--`."""
    image: str = LOCAL_IMAGE
    data: Path | None = None
    """A local folder with the texts (harness/workers/training/documents.py). None means generated texts with
    a known entropy."""
    volumes: str | None = None
    """A folder on a kind cluster that is kept for later launches. None means a new folder for this launch."""
    storage_class: str | None = None
    claims_namespace: str | None = None
    synthetic: bool = False
    """Whether to train on generated texts even if the user's claims are used.

    No claim for texts is then needed.
    """
    secrets: tuple[Wanted, ...] = ()
    """The user's Secrets whose keys become environment variables in the ranks."""
    reach: float | None = None
    """The maximum difference between the lowest validation loss and the texts' known entropy.

    The value is a fraction of the entropy. None means no limit.
    """
    same_as: tuple[str, str] | None = None
    """The name of a bundle, and the digest of its final weights. This training's final weights must have the
    same digest."""
    upload: str | None = None
    """The URL s3://BUCKET/PREFIX to which the run is uploaded after the training."""
    resume_from: str | None = None
    """The URL s3://BUCKET/PREFIX of a run that is restored before the training."""

    def __post_init__(self) -> None:
        training_volumes.check(self.volumes, self.storage_class, self.claims_namespace, existing=False)
        self._transferable()
        for name in ("run", "volumes"):
            value = getattr(self, name)
            if value is not None and (not value or "/" in value or value.startswith(".")):
                raise UsageError(
                    f"--{name}: expected a folder name without slashes or a leading dot, found {value!r}"
                )
        if self.rdzv_endpoint is not None:
            host, _, port = self.rdzv_endpoint.rpartition(":")
            if self.rdzv != "etcd" or not host or not port.isdecimal():
                raise UsageError(
                    f"--rdzv-endpoint: expected HOST:PORT of an etcd, together with --rdzv etcd; found "
                    f"{self.rdzv_endpoint!r} with --rdzv {self.rdzv}"
                )
        self._check_range()
        if self.memory is not None and not _positive(self.memory):
            raise UsageError(f"--memory: expected a quantity such as 8Gi, found {self.memory!r}")
        reserved = sorted({option.partition("=")[0] for option in self.options} & {"--run", *_OWN})
        if reserved:
            raise UsageError(
                f"options after `--` must not include {', '.join(reserved)}, because the launch sets them",
                hint="use --run and --gpus-per-pod before `--`; data and outputs are always in /data and "
                "/out",
            )
        names = [one.name for one in self.secrets]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(
                f"--secret {duplicates[0]} must be given only once, but it is given "
                f"{names.count(duplicates[0])} times"
            )
        if not self.smoke:
            self._check_options()
        if self.data is not None:
            self._data_fits(self.data)

    def _data_fits(self, data: Path) -> None:
        """Raise UsageError if --data conflicts with another option, or if a required file is missing."""
        if self.smoke:
            raise UsageError("--data cannot be combined with --smoke: the smoke test generates its own data")
        if self.storage_class or self.claims_namespace:
            raise UsageError(
                "--data applies only to kind; on your own cluster, copy the texts to the claim datasets-pvc"
            )
        if self.synthetic:
            raise UsageError(
                "--data and --synthetic cannot be combined: --data copies your texts, and --synthetic "
                "generates texts"
            )
        try:
            for split in documents.SPLITS:
                documents.files(data, split)
            entropy = exists(data / "source.json")
        except ValueError as error:
            raise UsageError(f"--data: {error}") from None
        except OSError as error:
            raise UsageError(f"--data {data} cannot be read: {error.strerror}") from None
        if self.reach is not None and not entropy:
            raise UsageError(
                f"--reach requires texts with a known entropy, but --data {data} has no source.json",
                hint="omit --reach, or generate the texts with `python -m training.source`",
            )

    def examine_data(self) -> None:
        """Read all texts in --data. Raises UsageError with the trainer's errors if texts are invalid."""
        if self.data is None:
            return
        parsed = self._parsed()
        bytes_ = not (parsed.model or parsed.model_local_dir or parsed.tokenizer_local_dir)
        problems, omitted, tokens = [], 0, 0
        try:
            for split in documents.SPLITS:
                context = parsed.context if bytes_ and split == documents.SPLITS[0] else None
                examined = token_sequences.examine(
                    documents.files(self.data, split), parsed.text_field, context
                )
                problems += examined.problems
                omitted += examined.others
                tokens += examined.tokens
        except ValueError as error:
            raise UsageError(f"--data: {error}") from None
        except OSError as error:
            path = error.filename or self.data
            raise UsageError(f"--data: {path} cannot be read: {error.strerror}") from None
        if problems:
            rest = [*problems[1:], *([f"… and {omitted} more"] if omitted else [])]
            hint = "\n  → ".join(rest) or "correct the file, or remove the line"
            raise UsageError(f"--data: {problems[0]}", hint=hint)
        self._fits_memory(tokens if bytes_ else 0)

    def data_warnings(self) -> list[str]:
        """Return the warnings about the texts in --data that examine_data has accepted."""
        if self.data is None:
            return []
        gaps = (documents.gap(documents.files(self.data, split)) for split in documents.SPLITS)
        return [text for text in gaps if text]

    def _fits_memory(self, tokens: int) -> None:
        """Raise UsageError if `tokens` tokens of the byte tokenizer do not fit into a rank's share of its
        pod's memory."""
        quantity = self.memory or (None if self.gpus else MEMORY)
        if quantity is None:
            return
        memory = int(float(parse_quantity(quantity)) * token_sequences.MEMORY_SHARE) // self.processes
        if tokens * array(token_sequences.typecode(token_sequences.Bytes.size)).itemsize > memory:
            raise UsageError(f"--data: {token_sequences.too_large(self.data or Path(), tokens, memory)}")

    def _check_range(self) -> None:
        """Raise UsageError if --max-replicas is incompatible with the other options."""
        maximum = self.max_replicas
        if maximum is None:
            return
        if self.kind != "statefulset":
            raise UsageError("--max-replicas applies only to --kind statefulset: a Job is not scaled")
        if self.smoke:
            raise UsageError("--max-replicas needs checkpoints to resume from, but --smoke writes none")
        if self.same_as is not None:
            raise UsageError(
                "--same-as cannot be combined with --max-replicas: the exact weights depend on the number "
                "of ranks"
            )
        if maximum < self.replicas:
            raise UsageError(
                f"--max-replicas: expected at least {self.replicas}, as in --replicas; found {maximum}"
            )

    def _transferable(self) -> None:
        """Raise UsageError if a transfer's URL is invalid, or if the training writes no checkpoints."""
        for option, url in self.transfers():
            if self.smoke:
                raise UsageError(f"{option} transfers checkpoints, but --smoke writes none")
            try:
                located(url)
            except ValueError as error:
                raise UsageError(
                    f"{option}: {error}", hint="use s3://BUCKET/PREFIX, where PREFIX is the folder of one run"
                ) from None

    def _check_options(self) -> None:
        """Raise UsageError for trainer options that the trainer would reject in every pod."""
        own = self._own_options()
        parsed = self._parsed()
        # The trainer also accepts abbreviated options (--dat=/x sets --data-dir), and the last value takes
        # precedence.
        for name, value in zip(own[::2], own[1::2], strict=True):
            if str(getattr(parsed, _OWN[name])) != value:
                raise UsageError(
                    f"remove {name} from the options after `--`, because the launch sets this option"
                )

    def _parsed(self) -> argparse.Namespace:
        return options.sensible(options.parser(_Refusing), [*self._own_options(), *self.options])

    def transfers(self) -> list[tuple[Literal["--upload", "--resume-from"], str]]:
        """Return the options for transfers from or to S3, with their URLs."""
        urls: list[tuple[Literal["--upload", "--resume-from"], str | None]]
        urls = [("--upload", self.upload), ("--resume-from", self.resume_from)]
        return [(option, url) for option, url in urls if url is not None]

    @property
    def hub_model(self) -> str | None:
        """Return the name of the model that the ranks download from the hub, or None."""
        if self.smoke:
            return None
        parsed = self._parsed()
        return str(parsed.model) if parsed.model and not parsed.local_files_only else None

    def _own_options(self) -> list[str]:
        device = "cuda" if self.gpus else "cpu"
        return ["--run-name", self.run, "--data-dir", "/data", "--out-dir", "/out", "--device", device]

    @property
    def needs_models(self) -> bool:
        """Return whether a trainer option contains a path on the volume for models."""
        folder = training_volumes.CLAIMS[training_volumes.MODELS]
        values = (word.rpartition("=")[2] for word in (*self.trainer, *self.options))
        return any(value == folder or value.startswith(f"{folder}/") for value in values)

    def generates_texts(self, *, printed: bool = False) -> bool:
        """Return whether the pods generate the texts. For printed manifests, this requires --synthetic."""
        return self.synthetic or not (printed or self.smoke or self.data or self.claims_namespace)

    def mounts(self, *, printed: bool = False) -> tuple[training_volumes.Mount, ...]:
        """Return the pods' mounts. A user's volumes are mounted read-only, except for the outputs."""
        if self.smoke:
            return ()
        if not (printed or self.storage_class or self.claims_namespace):
            return tuple(
                training_volumes.Mount(claim, path) for claim, path in training_volumes.CLAIMS.items()
            )
        data, models = (
            training_volumes.CLAIMS[training_volumes.DATASETS],
            training_volumes.CLAIMS[training_volumes.MODELS],
        )
        texts = training_volumes.Mount(training_volumes.DATASETS, data, read_only=True)
        if self.generates_texts(printed=printed):
            texts = training_volumes.Mount(training_volumes.OUTPUTS, data, folder=GENERATED_TEXTS)
        mounts = [
            texts,
            training_volumes.Mount(
                training_volumes.OUTPUTS, training_volumes.CLAIMS[training_volumes.OUTPUTS]
            ),
        ]
        user_claims = self.claims_namespace is not None and not printed
        if self.needs_models or user_claims:
            optional = not self.needs_models
            mounts.append(
                training_volumes.Mount(training_volumes.MODELS, models, read_only=True, optional=optional)
            )
        return tuple(mounts)

    @property
    def brings_etcd(self) -> bool:
        """Return whether the launch creates its own etcd."""
        return self.rdzv == "etcd" and self.rdzv_endpoint is None

    def words(self) -> list[str]:
        """Return the pods' command: training.sh with torchrun's options, the trainer, and its options."""
        head = ["sh", "/workspace/training/training.sh", f"--nproc-per-node={self.processes}", "-m"]
        if self.smoke:
            return [*head, "training.train", *SMOKE.split(), *self.options]
        return [*head, *self.trainer, *self._own_options(), *self.options]

    def environment(self) -> dict[str, str]:
        """Return the environment variables for training.sh and NCCL."""
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
            "TRAINING_SOURCE": "1" if self.generates_texts() else "0",
            **nccl,
        }


def _positive(quantity: str) -> bool:
    try:
        return bool(parse_quantity(quantity) > 0)
    except ValueError:
        return False
