"""What is done in a world: all lines of cases.txt, and in ours client-go's tests after them; or these sections, of which clientgo is one."""
import cases
import clientgo
from world import BIN


def work(world, out, *only):
    cases.work(world, out, *only)
    if world.name == "ours" and (not only or "clientgo" in only):
        clientgo.work(world, BIN / "clientgo.test")
