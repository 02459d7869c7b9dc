"""The overlay of one run, as the guardian's deeds use it: laid, brought to a set, proven, looked at, forgotten."""

from __future__ import annotations

from typing import List, Optional, Set

from . import args, outrank, overlay, places
from .interpreter import Place
from .journal import Journal
from .logfile import LogFile
from .origins import Origins
from .overlay import Overlay, Wanted
from .procs import Identity
from .server import Launch
from .tree_copy import Abort
from .wire import AgentError, Message


class Layer:
    """At most one overlay; it stays laid from one boot to the next, so that all arms run the same copy."""

    def __init__(self, journal: Journal, log: LogFile, abort: Abort) -> None:
        self._journal = journal
        self._log = log
        self._abort = abort
        self._overlay: Optional[Overlay] = None
        self._absent: List[str] = []
        self._origins: Optional[Origins] = None

    def lay(self, given: Message) -> Message:
        """Raises AgentError as `overlay.lay` and `overlay.bring` do; after any of them there is no overlay."""
        set_name, package = args.text(given, "set"), args.path_name(given, "package")
        source = places.expand(args.text(given, "package_path"))
        wanted = overlay.parse(args.objects(given, "files"))
        laid = self._overlay
        if laid is not None and (laid.package, laid.source) != (package, source):
            raise AgentError("bad_request", "an overlay of {} is laid already".format(laid.source))
        try:
            if laid is None:
                laid = overlay.lay(self._journal, package, source, self._abort)
            result = overlay.bring(self._journal, laid, set_name, wanted)
        except (AgentError, OSError) as error:
            self._log.write("overlay for {} refused: {}".format(set_name, error))
            overlay.remove(self._journal)
            self.forget()
            raise
        self._overlay = laid
        self._absent = _modules(package, wanted)
        self._log.write("overlay holds {}: {} changed".format(set_name, len(result["changed"])))
        return dict(result, root=laid.root)

    def placed(self, launch: Launch) -> Launch:
        """The launch with the overlay first on its path, proven by its own interpreter; as it is without an overlay.

        Raises AgentError `mismatch` when something else would be loaded.
        """
        laid = self._overlay
        if laid is None or not launch.argv:
            return launch
        place = Place(launch.argv[0], launch.cwd, launch.env)
        outrank.prove(place, laid.package, laid.root, self._absent, laid=True)
        return launch._replace(env=outrank.with_root(launch.env, laid.root))

    @property
    def touched(self) -> List[str]:
        return [] if self._overlay is None else self._overlay.touched

    def watch(self, leader: Identity) -> None:
        """A server was started from it; its processes are looked at from now on."""
        if self._overlay is not None:
            mark = str(self._journal.opening["marker"])
            self._origins = Origins(
                self._overlay.root, self._overlay.source, self._overlay.package, mark, leader[0]
            )
            self._origins.note({leader})

    def note(self, alive: Set[Identity]) -> None:
        if self._origins is not None:
            self._origins.note(alive)

    def tell(self, alive: Set[Identity]) -> Message:
        if self._overlay is None or self._origins is None:
            raise AgentError("bad_request", "no server was started from an overlay")
        return {"root": self._overlay.root, "processes": self._origins.tell(alive)}

    def forget(self) -> None:
        self._overlay = None
        self._absent = []
        self._origins = None


def _modules(package: str, wanted: List[Wanted]) -> List[str]:
    """Import names of the files that a set removes."""
    gone = [item.path[:-3] for item in wanted if item.data is None and item.path.endswith(".py")]
    names = [".".join([package, *path.split("/")]) for path in gone]
    return [name[: -len(".__init__")] if name.endswith(".__init__") else name for name in names]
