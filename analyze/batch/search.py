"""Goes through a tree from the bottom up and puts together what is of one run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from roundk.analyze.batch import jobnames, remote, tree
from roundk.analyze.batch.kinds import Kind, Kinds
from roundk.analyze.batch.run import File
from roundk.analyze.batch.tree import Folder, Tree
from roundk.analyze.batch.units import (
    Unit,
    archive_stem,
    at_one_time,
    last_attempt,
    merged,
    of_one_run,
    overlap,
    own_units,
    paths_of,
)

RUN_FILE: Final = "run.json"
_IN_HOST: Final = re.compile(r"(?:rank-\d+-.*|launcher-.*|links-.*)\.jsonl")
_PROCESS: Final = re.compile(r"rank-\d+-.*\.jsonl")
_PROCESS_HEAD: Final = 4096
"""Bytes at the beginning of a rank's lines; the second says job and attempt."""
_SHOWN: Final = 3


class Search:
    """Finds the runs of one tree."""

    def __init__(self, one: Tree) -> None:
        """Begin with one tree; what belongs to no run that could be told is added to its problems."""
        self._tree = one
        self._kinds = Kinds(one)

    def units(self) -> list[Unit]:
        """What is of one run each."""
        if self._tree.is_file:
            name, file = next(iter(self._tree.top.files.items()))
            return [Unit(name, [file.path], [file], told=jobnames.of_file(name))]
        units = self._units(self._tree.top)
        self._attempts(units)
        return units

    def _units(self, folder: Folder) -> list[Unit]:
        units = self._held(folder)
        name = folder.basename or tree.base(self._tree.root)
        told = jobnames.of_folder(name)
        if len(units) == 1:
            unit = units[0]
            # What a scheduler called the folder is known beyond the run; a rendezvous' id may be a random one.
            if told.job is not None and (unit.told.job is None or unit.is_sealed):
                unit.told = replace(unit.told, job=told.job)
            if told.attempt is not None and (unit.told.attempt is None or unit.is_sealed):
                unit.told = replace(unit.told, attempt=told.attempt)
        for unit in units:
            last = unit.name.removeprefix(folder.name).strip("/")
            if unit.told.job is None and unit.told.attempt is not None and last and "/" not in last:
                unit.told = replace(unit.told, job=jobnames.of_attempts(name))
        return units

    def _held(self, folder: Folder) -> list[Unit]:
        """The units that a folder holds."""
        if self._is_run(folder):
            return [self._run_directory(folder)]
        kinds = self._kinds.of(folder)
        if jobnames.is_whole(folder.basename) and folder is not self._tree.top:
            return self._whole(folder, kinds)
        own, loose = own_units(folder, kinds)
        below: dict[str, list[Unit]] = {}
        for name in sorted(folder.folders):
            if units := self._units(folder.folders[name]):
                below[name] = units
        archives = self._archives(folder, kinds, below)
        if len(archives) > 1 and all(jobnames.is_host(archive_stem(unit.basename)) for unit in archives):
            archives = [merged(folder.name, archives)]
        return self._together(folder, own, loose, archives, below)

    def _is_run(self, folder: Folder) -> bool:
        """As `roundk.tracer.reader.is_run`, and a damaged one too."""
        hosts = (child for child in folder.folders.values() if any(_IN_HOST.fullmatch(name) for name in child.files))
        if next(hosts, None) is not None:
            return True
        file = folder.files.get(RUN_FILE)
        if file is None:
            return False
        try:
            head = self._tree.head(file, _PROCESS_HEAD)
            return "roundk_schema" in json.loads(head)
        except (ValueError, TypeError):
            return not head.strip(b"\x00 \n") or b"roundk_schema" in head
        except remote.errors() as error:
            self._tree.problems.append(f"{file.path}: it cannot be read: {remote.said(error)}")
            return False

    def _run_directory(self, folder: Folder) -> Unit:
        files = list(folder.below())
        unit = Unit(folder.name, paths_of(folder), files, has_dumps=True, is_sealed=True)
        lines = [
            file
            for host in folder.folders.values()
            for name, file in host.files.items()
            if _PROCESS.fullmatch(name) and file.size
        ]
        if lines:
            unit.told = self._process(max(lines, key=lambda file: (file.version, file.path)))
        return unit

    def _process(self, file: File) -> jobnames.Told:
        """Job and attempt that the process of a rank wrote down."""
        try:
            head = self._tree.head(file, _PROCESS_HEAD)
        except remote.errors():
            return jobnames.Told()  # the analysis will say so
        for line in head.split(b"\n"):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("kind") == "process":
                job, attempt = str(said.get("job") or "").split("/")[0], said.get("attempt")
                known = job if job.lower() not in jobnames.NO_RENDEZVOUS else None
                return jobnames.Told(known, attempt if known and isinstance(attempt, int) else None)
        return jobnames.Told()

    def _whole(self, folder: Folder, kinds: dict[str, Kind]) -> list[Unit]:
        """A folder as one, if anything in it is evidence."""
        stack, has_any, has_dumps = [(folder, kinds)], False, False
        while stack:
            place, here = stack.pop()
            has_any = has_any or any(kind is not Kind.NOTHING for kind in here.values())
            has_dumps = has_dumps or Kind.DUMP in here.values()
            if has_any and has_dumps:
                break
            stack += [(child, self._kinds.of(child)) for child in place.folders.values()]
        if not has_any:
            return []
        return [Unit(folder.name, paths_of(folder), self._files(folder), has_dumps=has_dumps)]

    def _archives(self, folder: Folder, kinds: dict[str, Kind], below: dict[str, list[Unit]]) -> list[Unit]:
        units = []
        for name in sorted(name for name, kind in kinds.items() if kind is Kind.ARCHIVE):
            file = folder.files[name]
            unpacked = archive_stem(name)
            if unpacked in below:
                self._tree.problems.append(f"{file.path}: left out, as {unpacked}/ beside it holds it unpacked")
                continue
            told = jobnames.of_file(unpacked)
            path = f"{folder.name}/{name}".lstrip("/")
            units.append(Unit(path, [file.path], [file], has_dumps=True, told=told))
        return units

    def _together(
        self,
        folder: Folder,
        own: list[Unit],
        loose: list[Unit],
        archives: list[Unit],
        below: dict[str, list[Unit]],
    ) -> list[Unit]:
        """Which of a folder's files and folders are of one run."""
        roles, hosts, runs = self._sorted(own, below, folder)
        if len(own) > 1:
            return self._attached(folder, [*own, *runs, *archives], [*loose, *roles, *hosts])
        parts = [*own, *roles, *hosts]
        if len(archives) == 1 and not runs and parts:
            parts, archives = [*parts, *archives], []
        runs += archives
        if runs:
            return self._beside(folder, runs, own, [*roles, *hosts]) if parts else self._nodes(runs)
        # A folder with nothing but another is as good as that; one called as an attempt is the attempt.
        is_attempt = jobnames.of_folder(folder.basename).attempt is not None
        return parts if len(parts) == 1 and not own and not is_attempt else self._one(folder, parts)

    def _beside(self, folder: Folder, runs: list[Unit], own: list[Unit], parts: list[Unit]) -> list[Unit]:
        """Runs, and beside them a folder's own files and folders of parts: one more run, or parts of one of them."""
        mine = [*own, *parts]
        if len(runs) == 1 and runs[0].is_sealed and not jobnames.is_run(archive_stem(runs[0].basename)):
            return [merged(folder.name, [*runs, *mine])]
        last = last_attempt(runs)
        if last is not None and not any(unit.told.job for unit in mine):
            return [*(run for run in runs if run is not last), merged(last.name, [last, *mine])]
        if own and own[0].has_dumps:
            return self._by_job([merged(folder.name, mine), *runs])
        dumping = [unit for unit in parts if unit.has_dumps]
        if len(dumping) > 1 and all(jobnames.is_host(unit.basename) for unit in dumping):
            dumping = [merged(folder.name, dumping)]
        return self._attached(folder, [*runs, *dumping], [unit for unit in mine if not unit.has_dumps])

    def _nodes(self, units: list[Unit]) -> list[Unit]:
        """The logs that the agents of one job's hosts left in folders of their own, put together by attempt."""
        alike: dict[tuple[str, int], list[Unit]] = {}
        for unit in units:
            above = unit.name.split("/")[-2:-1]
            if unit.told.attempt is not None and not unit.has_dumps and above and jobnames.is_rendezvous(above[0]):
                alike.setdefault((unit.told.job or "", unit.told.attempt), []).append(unit)
        gone: set[int] = set()
        for nodes in alike.values():
            for together in at_one_time(nodes):
                whole = merged(together[0].name, together)
                together[0].paths, together[0].files = whole.paths, whole.files
                gone |= {id(unit) for unit in together[1:]}
        return [unit for unit in units if id(unit) not in gone]

    def _one(self, folder: Folder, parts: list[Unit]) -> list[Unit]:
        if not parts:
            return []
        unit = merged(folder.name, parts)
        # All that is below, so that a file which is added later makes it a changed run.
        unit.paths = paths_of(folder)
        unit.files = self._files(folder)
        return [unit]

    def _files(self, folder: Folder) -> list[File]:
        """The files below a folder; in a store without those that nothing reads, as they would have to be fetched."""
        if self._tree.store is None:
            return list(folder.below())
        kinds = self._kinds.of(folder)
        files = [folder.files[name] for name, kind in kinds.items() if kind is not Kind.NOTHING]
        for child in folder.folders.values():
            files += self._files(child)
        return files

    def _sorted(
        self, own: list[Unit], below: dict[str, list[Unit]], folder: Folder
    ) -> tuple[list[Unit], list[Unit], list[Unit]]:
        """The folders below as parts by their names, as hosts of one run, and as runs of their own."""
        roles: list[Unit] = []
        runs: list[Unit] = []
        maybe: dict[str, Unit] = {}
        for name, units in below.items():
            if len(units) > 1 or units[0].is_sealed or (jobnames.is_run(name) and not jobnames.is_role(name)):
                runs += units
            elif _is_part(units[0].name.removeprefix(folder.name).strip("/")):
                roles.append(units[0])
            else:
                maybe[name] = units[0]
        mine = frozenset().union(*(unit.ranks for unit in [*own, *roles]))
        has_dumps = any(unit.has_dumps for unit in [*own, *roles])
        clash = overlap([unit.ranks for unit in roles if unit.ranks])
        if clash and not own:
            runs += roles
            roles = []
        if not maybe:
            return roles, [], runs
        if of_one_run(folder, maybe, mine, has_dumps=has_dumps, is_alone=not own and not roles):
            return roles, list(maybe.values()), runs
        return roles, [], [*runs, *maybe.values()]

    def _attached(self, folder: Folder, runs: list[Unit], parts: list[Unit]) -> list[Unit]:
        """Runs beside each other, each with the logs and dumps of its job; what belongs to none is listed."""
        left: list[Unit] = []
        for part in parts:
            job = part.told.job
            at = [
                k
                for k, run in enumerate(runs)
                if job is not None and job == run.told.job and not (part.has_dumps and run.has_dumps)
            ]
            if len(at) == 1:
                runs[at[0]] = merged(runs[at[0]].name, [runs[at[0]], part])
            elif part.has_dumps or job is not None:
                left.append(part)
            else:
                self._stray(folder, part, len(runs))
        return self._by_job([*runs, *left])

    def _by_job(self, units: list[Unit]) -> list[Unit]:
        """The log of a job put to its dumps, where each is found once."""
        logs: dict[str, list[Unit]] = {}
        dumps: dict[str, list[Unit]] = {}
        for unit in units:
            if (job := unit.told.job) is not None:
                (dumps if unit.has_dumps else logs).setdefault(job, []).append(unit)
        gone: set[int] = set()
        joined: list[Unit] = []
        for unit in units:
            job = unit.told.job
            if unit.has_dumps and job in logs and len(dumps[job]) == 1 and len(logs[job]) == 1:
                gone.add(id(logs[job][0]))
                joined.append(merged(unit.name, [unit, logs[job][0]]))
            else:
                joined.append(unit)
        return [unit for unit in joined if id(unit) not in gone]

    def _stray(self, folder: Folder, part: Unit, runs: int) -> None:
        shown = ", ".join(file.path.rsplit("/", 1)[-1] for file in part.files[:_SHOWN])
        more = f" and {len(part.files) - _SHOWN:,} more" if len(part.files) > _SHOWN else ""
        self._tree.problems.append(
            f"{folder.path}: {shown}{more}: left out, as to which of {runs:,} runs it belongs "
            "cannot be told; --run-glob says what a run is"
        )

    def _attempts(self, units: list[Unit]) -> None:
        """A run called as the job of others' attempts is one of them."""
        jobs = {job for unit in units if (job := unit.told.job) is not None}
        for unit in units:
            if unit.told.job is None and (name := jobnames.stem(archive_stem(unit.basename))) in jobs:
                unit.told = replace(unit.told, job=name)


def _is_part(path: str) -> bool:
    """Whether folders, one in another, are called by parts of a run: `logs`, `logs/slurm`, not `slurm/incident-3`."""
    first, *more = path.split("/")
    is_part = jobnames.is_role(first) or jobnames.is_whole(first)
    return is_part and all(jobnames.is_role(one) or jobnames.is_whole(one) or jobnames.is_host(one) for one in more)
