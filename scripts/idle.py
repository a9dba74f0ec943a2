#!/usr/bin/env python3
"""idle.py write MAP PID... | idle.py check MAP: src/pilot/idle.ld, the functions that a release's linker puts side by side.

`write` watches idle pilots, one after the other, and lists what they run. `check` fails when less than three in four names
of the list are in the program: then it is time to write it again (docs/pilot.md). MAP is the linker's, beside the program.
"""
import collections, ctypes, os, pathlib, re, signal, sys, time

LIST = pathlib.Path(__file__).resolve().parents[1] / "src/pilot/idle.ld"
HEAD = """/* What an idle pilot runs, written by `make idle`. The linker of a release puts it side by side: the
   kernel maps 16 pages around each one in use (docs/pilot.md). Unknown names do no harm. */
SECTIONS {
  .text.idle : {
"""
TAIL = "  }\n}\nINSERT BEFORE .text;\n"
SEIZE, INTERRUPT, CONT, DETACH, PEEK, POKE, STOPPED = 0x4206, 0x4207, 7, 17, 3, 6, 128
FOLLOW = 2 | 4 | 8  # forks and threads
RIP = 16 * 8
BREAK = b"\xcc"
SECONDS = 75


def pattern(section):
    """A section's name, without hashes of the compiler and of crates."""
    return re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", re.sub(r"17h[0-9a-f]{16}E.*", "17h*", section))


def functions(path):
    """Where each function begins in the program, and how the list names it.

    A function of Rust has a section of its own. Those of the C library are named by their object. (Assembly of ring is left out:
    not all that it names there is a function.)
    """
    section = re.compile(r" *([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) +\d+ {9}(\S.*):\((\.text[^)]*)\)")
    symbol = re.compile(r" *([0-9a-f]+) +[0-9a-f]+ +[1-9a-f][0-9a-f]* +\d+ {17}\S.*")
    found, of = {}, None
    for text in open(path):
        if one := section.fullmatch(text.rstrip("\n")):
            own = re.match(r"\.text\.(unlikely\.|hot\.)?(_ZN|_R)", one[4])
            if own and int(one[2], 16):
                found[int(one[1], 16)] = f"*({pattern(one[4])})"
            member = re.search(r"/(libc)\.a\(([^)]*)\)$", one[3])
            of = None if own or not member else f"*{member[1]}[-.]*:{member[2]}({one[4]})"
            # Which variant of memcpy and its like runs depends on the processor.
            of = of and re.sub(r"-(avx|sse|evex).*", "-*(.text.*)", of)
        elif of and (one := symbol.fullmatch(text.rstrip("\n"))):
            found[int(one[1], 16)] = of
        elif not symbol.fullmatch(text.rstrip("\n")):
            of = None
    return found


def ptrace(request, tid, address=0, data=0):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ctypes.set_errno(0)
    answer = libc.ptrace(request, tid, address, data)
    if ctypes.get_errno():
        raise OSError(ctypes.get_errno(), f"ptrace of {tid}: {os.strerror(ctypes.get_errno())}")
    return answer


class Watched:
    """A process whose functions each stop it when they are first entered."""

    def __init__(self, pid, begins):
        self.pid, self.ran = pid, set()
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        own = [line.split() for line in open(f"/proc/{pid}/maps") if line.rstrip().removesuffix(" (deleted)").endswith(program)]
        base = int(own[0][0].split("-")[0], 16)
        self.names = {base + begin: name for begin, name in begins.items()}
        self.threads = {int(tid) for tid in os.listdir(f"/proc/{pid}/task")}
        for tid in self.threads:
            ptrace(SEIZE, tid, 0, FOLLOW)
        self.halt()
        self.code = []
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for words in own:
                start, end = (int(part, 16) for part in words[0].split("-"))
                if "x" in words[1]:
                    memory.seek(start)
                    self.code.append((start, memory.read(end - start)))
        self.put({at for at in self.names})
        for tid in self.threads:
            ptrace(CONT, tid)

    def put(self, stops):
        """Writes the code with a stop at each of these addresses."""
        with open(f"/proc/{self.pid}/mem", "wb", 0) as memory:
            for start, code in self.code:
                changed = bytearray(code)
                for at in stops:
                    if start <= at < start + len(code):
                        changed[at - start:at - start + 1] = BREAK
                memory.seek(start)
                memory.write(changed)

    def halt(self):
        for tid in list(self.threads):
            ptrace(INTERRUPT, tid)
            while True:
                status = os.waitpid(tid, 0x40000000)[1]
                if self.passed(tid, status):
                    break
                if status >> 16 == STOPPED or not os.WIFSTOPPED(status):
                    break
                self.go_on(tid, status)

    def passed(self, tid, status):
        """Steps back to the function that stopped this thread, and takes its stop away."""
        if not os.WIFSTOPPED(status) or os.WSTOPSIG(status) != signal.SIGTRAP or status >> 16:
            return False
        at = (ptrace(PEEK, tid, RIP) & (1 << 64) - 1) - 1
        if at not in self.names:
            return False
        self.ran.add(at)
        start, code = next((start, code) for start, code in self.code if start <= at < start + len(code))
        with open(f"/proc/{tid}/mem", "wb", 0) as memory:
            memory.seek(at)
            memory.write(code[at - start:at - start + 1])
        ptrace(POKE, tid, RIP, at)
        return True

    def go_on(self, tid, status):
        number = os.WSTOPSIG(status) if not status >> 16 and os.WSTOPSIG(status) != signal.SIGTRAP else 0
        ptrace(CONT, tid, 0, number)

    def follow(self):
        """Waits, and returns the names of the functions that were entered."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            tid, status = os.waitpid(-1, os.WNOHANG | 0x40000000)
            if not tid:
                time.sleep(0.001)
            elif not os.WIFSTOPPED(status):
                self.threads.discard(tid)
            else:
                self.threads.add(tid)
                if self.passed(tid, status):
                    ptrace(CONT, tid)
                else:
                    self.go_on(tid, status)
        self.halt()
        self.put(set())
        for tid in self.threads:
            ptrace(DETACH, tid)
        return {self.names[at] for at in self.ran}


def main():
    if sys.argv[1:2] == ["check"] and len(sys.argv) == 3:
        there = set(functions(sys.argv[2]).values())
        listed = re.findall(r"^    (\*\(.*\))$", LIST.read_text(), re.M)
        known = sum(name in there for name in listed)
        print(f"{LIST.name}: {known} of {len(listed)} names are in the program")
        if known < len(listed) * 3 / 4:
            sys.exit(f"{LIST.name}: the functions of an idle pilot have other names now; write it again with `make idle`")
    elif sys.argv[1:2] == ["write"] and len(sys.argv) > 3:
        begins = functions(sys.argv[2])
        ran = set().union(*(Watched(int(pid), begins).follow() for pid in sys.argv[3:]))
        # Instances of a generic function share a name, and few of them run: the more there are, the later they come.
        bearers = collections.Counter(begins.values())
        names = sorted(ran, key=lambda name: (bearers[name].bit_length(), name))
        LIST.write_text(HEAD + "".join(f"    {name}\n" for name in names) + TAIL)
        print(f"{LIST.name}: {len(ran)} names")
    else:
        sys.exit(__doc__)


main()
