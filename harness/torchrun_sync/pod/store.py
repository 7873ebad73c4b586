"""A pod's store of trees. The store writes only into its own folder, except for links in MOUNT.

The store is the folder ROOT = MOUNT/.torchrun; the command runs in MOUNT.

    MOUNT/NAME            a link to ROOT/current/NAME for each top-level name of the tree; other files in
                          MOUNT are not changed
    ROOT/current          a link to the current tree, replaced atomically
    ROOT/ready            written at the end of each switch; an init container waits for it
    ROOT/trees/NAME/      a complete tree, which shares no file with another tree
    ROOT/trees/NAME.json  the tree's metadata: digest, generation, and stamps that show whether files changed
    ROOT/incoming/SHA     the received content of a file that is not in a tree yet; SHA.part is incomplete
    ROOT/id               a random identifier; pods with the same identifier share the folder
    ROOT/lock             the write lock (store_lock.py)

A connection may be lost at any time. The store keeps the data received so far, and the next connection sends
only the missing data.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Sequence
from typing import Any

from harness.torchrun_sync.pod.entries import Entry, Refused, check, tree_digest
from harness.torchrun_sync.pod.files import read_json, write_json, write_text
from harness.torchrun_sync.pod.incoming import Incoming
from harness.torchrun_sync.pod.store_lock import Writer
from harness.workers.own_processes import OwnProcesses

PIECE = 1 << 20


class Store:
    """The folder that contains a pod's trees.

    If several pods mount the folder, only one pod at a time writes to it.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.trees, self.incoming = os.path.join(self.root, "trees"), os.path.join(self.root, "incoming")
        for folder in (self.trees, self.incoming):
            os.makedirs(folder, exist_ok=True)
        self.id = self._id()
        self._writer = Writer(self.root)
        self._entries: Sequence[Entry] = []
        self._staged = ""

    def _id(self) -> str:
        """Return the folder's identifier. If the identifier does not exist, create it.

        Two pods can safely call this at the same time.
        """
        path = os.path.join(self.root, "id")
        try:
            with open(path, "x", encoding="ascii") as file:
                file.write(os.urandom(16).hex())
        except FileExistsError:
            pass
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with open(path, encoding="ascii") as file:
                identifier = file.read()
            if len(identifier) == 32:
                return identifier
            time.sleep(0.01)
        raise Refused(f"{path} contains {identifier!r}; expected 32 characters: delete this file")

    # -- read the current tree -------------------------------------------------------------------------
    def current(self) -> dict[str, Any]:
        """Return the metadata of the current tree, including its name, or {} if there is no current tree."""
        try:
            name = os.path.basename(os.readlink(os.path.join(self.root, "current")))
        except FileNotFoundError:
            return {}
        record = read_json(os.path.join(self.trees, f"{name}.json"))
        return {**record, "name": name} if record else {}

    def intact(self) -> bool:
        """Return whether all files in the current tree are unchanged since the store wrote them."""
        current = self.current()
        return len(self._unchanged(current)) == len(current.get("files", {}))

    def _unchanged(self, current: dict[str, Any]) -> dict[str, str]:
        """Return the digests of the files in a tree that are unchanged, keyed by absolute path."""
        digests = {}
        for path, (sha, *stat_fields) in current.get("files", {}).items():
            file_path = os.path.join(self.trees, current["name"], path)
            try:
                status = os.lstat(file_path)
            except OSError:
                continue
            if [status.st_size, status.st_mtime_ns, status.st_ino] == stat_fields and os.access(
                file_path, os.R_OK
            ):
                digests[file_path] = sha
        return digests

    def _current_paths(self) -> dict[str, str]:
        return {sha: path for path, sha in self._unchanged(self.current()).items()}

    # -- lock the store for writing --------------------------------------------------------------------
    def lock(self, session: str, seconds: float) -> None:
        """Acquire the write lock (store_lock.py).

        Raises Refused if another session holds it for longer than `seconds`.
        """
        self._writer.lock(session, seconds)

    def unlock(self) -> None:
        self._writer.unlock()

    # -- receive a tree and switch to it ---------------------------------------------------------------
    def expect(self, entries: Sequence[Entry]) -> list[tuple[str, int]]:
        """Prepare to receive a tree.

        Return (SHA-256, number of bytes already received) for each file content that the store lacks.

        Raises Refused if the entries are invalid or would replace a file in the mount.
        """
        check(entries)
        mount, store_name = os.path.split(self.root)
        for top in {str(entry["path"]).split("/")[0] for entry in entries}:
            path = os.path.join(mount, top)
            if top == store_name:
                raise Refused(f"{store_name} is the store's own folder, and cannot be part of a tree")
            if os.path.lexists(path) and not _is_ours(path, store_name):
                raise Refused(
                    f"{path} conflicts with {top} in the workspace: remove {path}, or exclude {top} "
                    "from the sync"
                )
        self._entries = entries
        self._remove_unfinished()
        self._staged = self._built(tree_digest(entries))
        if self._staged:
            return []
        current_paths = self._current_paths()
        missing: dict[str, int] = {}
        for entry in entries:
            sha = entry.get("sha256")
            if sha is None or sha in current_paths or os.path.exists(os.path.join(self.incoming, sha)):
                continue
            part = os.path.join(self.incoming, f"{sha}.part")
            missing[sha] = os.path.getsize(part) if os.path.exists(part) else 0
            if missing[sha] > entry["size"]:
                os.unlink(part)
                missing[sha] = 0
        return sorted(missing.items())

    def _remove_unfinished(self) -> None:
        """Remove what earlier syncs left that did not finish and sent other code than the expected tree.

        Otherwise, the rest of a sync that filled the volume would also make each later, smaller sync fail.
        """
        expected = {entry["sha256"] for entry in self._entries if entry["kind"] == "file"}
        for name in os.listdir(self.incoming):
            if name.split(".")[0] not in expected:
                os.unlink(os.path.join(self.incoming, name))
        tree, current = tree_digest(self._entries), self.current().get("name")
        for name in {file.split(".")[0] for file in os.listdir(self.trees)} - {current}:
            record = read_json(os.path.join(self.trees, f"{name}.json"))
            if not record or (record.get("generation") == 0 and record.get("tree") != tree):
                self._remove_tree(name)

    def _remove_tree(self, name: str) -> None:
        shutil.rmtree(os.path.join(self.trees, name), ignore_errors=True)
        for file in os.listdir(self.trees):
            if file.startswith(f"{name}."):
                os.unlink(os.path.join(self.trees, file))

    def content(self, sha: str, size: int, offset: int) -> Incoming:
        """Return a writer for the content of a file in the expected tree.

        Raises Refused if no file in this tree has this content.
        """
        if not any(e.get("sha256") == sha and e["size"] == size for e in self._entries):
            raise Refused(f"no file of the tree has {size!r} bytes and the digest {sha!r}")
        return Incoming(os.path.join(self.incoming, sha), sha, size, offset)

    def stage(self) -> str:
        """Build the expected tree next to the current tree. Return the digest of the tree as it was built."""
        if self._staged:
            return tree_digest(self._entries)
        name = f"{tree_digest(self._entries)[:12]}-{os.urandom(4).hex()}"
        top = os.path.join(self.trees, name)
        os.mkdir(top)
        current_paths = self._current_paths()
        built_entries: list[Entry] = []
        files: dict[str, list[Any]] = {}
        for entry in sorted(self._entries, key=lambda each: str(each["path"])):
            path = os.path.join(top, entry["path"])
            actual = dict(entry)
            if entry["kind"] == "dir":
                os.mkdir(path)
            elif entry["kind"] == "link":
                os.symlink(entry["target"], path)
            else:
                self._place(entry, path, current_paths)
                os.chmod(path, entry["mode"] & 0o777)
                status = os.lstat(path)
                actual |= {"mode": stat.S_IMODE(status.st_mode), "size": status.st_size}
                files[entry["path"]] = [entry["sha256"], status.st_size, status.st_mtime_ns, status.st_ino]
            built_entries.append(actual)
        for entry in self._entries:
            if entry["kind"] == "dir":  # Mode 0o700 lets the owner remove the files.
                os.chmod(os.path.join(top, entry["path"]), entry["mode"] & 0o777 | 0o700)
        digest = tree_digest(built_entries)
        write_json(f"{top}.json", {"tree": digest, "generation": 0, "files": files, "entries": built_entries})
        self._staged = name
        return digest

    def _built(self, tree: str) -> str:
        """Return the name of the tree if it was built before the connection was lost. Otherwise, return
        ""."""
        for file in sorted(os.listdir(self.trees)):
            if file.startswith(tree[:12]) and file.endswith(".json"):
                record = {**read_json(os.path.join(self.trees, file)), "name": file[: -len(".json")]}
                is_fresh = record.get("tree") == tree and record.get("generation") == 0
                if is_fresh and len(self._unchanged(record)) == len(record["files"]):
                    return str(record["name"])
        return ""

    def _place(self, entry: Entry, path: str, paths: dict[str, str]) -> None:
        """Move a file's received content to `path`, or copy the content from the current tree."""
        received = os.path.join(self.incoming, entry["sha256"])
        if os.path.exists(received):
            os.rename(received, path)
        else:
            source_fd = os.open(paths[entry["sha256"]], os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(source_fd, "rb") as source, open(path, "xb") as copy:
                shutil.copyfileobj(source, copy, PIECE)
        paths[entry["sha256"]] = path

    def switch(self, tree: str, generation: int) -> dict[str, Any]:
        """Make the staged tree the current tree, or set the generation of the current tree.

        Return the tree's metadata. Raises Refused if neither tree has the requested digest.
        """
        before = self.current()
        name = self._staged or self._built(tree) or before.get("name", "")
        record = read_json(os.path.join(self.trees, f"{name}.json")) if name else {}
        if record.get("tree") != tree:
            raise Refused(f"expected the tree {tree[:12]}, found {record.get('tree', 'none')[:12]}")
        write_json(os.path.join(self.trees, f"{name}.json"), {**record, "generation": generation})
        if name != before.get("name"):
            link = os.path.join(self.root, f"current.{os.urandom(6).hex()}")
            os.symlink(os.path.join("trees", name), link)
            os.replace(link, os.path.join(self.root, "current"))
        self._show(name)
        if self._writer.writes:
            self._tidy({name, before.get("name", "")})
        self._staged = ""
        self._writer.unlock()
        return self.current()

    def write_ready(self, text: str) -> None:
        """Write a string to ROOT/ready.

        This ends an init container that waits for the string. If this process runs in that container, the
        process ends too.
        """
        write_text(os.path.join(self.root, "ready"), text)

    def ready(self) -> bool:
        """Return whether ROOT/ready exists."""
        return os.path.exists(os.path.join(self.root, "ready"))

    def _show(self, name: str) -> None:
        """Create links in the mount to the top-level names of the tree, and remove outdated links."""
        mount, store_name = os.path.split(self.root)
        top_names = os.listdir(os.path.join(self.trees, name))
        for top in os.listdir(mount):
            if _is_ours(os.path.join(mount, top), store_name) and top not in top_names:
                os.unlink(os.path.join(mount, top))
        for top in top_names:
            if not os.path.lexists(os.path.join(mount, top)):
                os.symlink(os.path.join(store_name, "current", top), os.path.join(mount, top))

    def _tidy(self, needed: set[str]) -> None:
        """Remove received file contents that are not in a tree, and trees that are no longer needed.

        A tree is needed if its name is in `needed`, or if the tree contains the working directory of a
        process.
        """
        for name in os.listdir(self.incoming):
            os.unlink(os.path.join(self.incoming, name))
        for link in (name for name in os.listdir(self.root) if name.startswith("current.")):
            os.unlink(os.path.join(self.root, link))
        used_folders = "\n".join(f"{folder}/" for folder in _working_folders())
        for tree in {file.split(".")[0] for file in os.listdir(self.trees)} - needed:
            if f"{os.path.join(self.trees, tree)}/" not in used_folders:
                self._remove_tree(tree)


def _is_ours(path: str, store_name: str) -> bool:
    """Return whether a path in the mount is the store's link to the entry of the same name in the current
    tree."""
    try:
        return os.readlink(path) == os.path.join(store_name, "current", os.path.basename(path))
    except OSError:
        return False


def _working_folders() -> list[str]:
    """Return the working directories of this container's processes.

    Processes that cannot be inspected are left out.
    """
    folders = []
    for pid in OwnProcesses().pids():
        with contextlib.suppress(OSError):
            folders.append(os.readlink(f"/proc/{pid}/cwd"))
    return folders
