"""What is done in a world: all lines of cases.txt, and in ours client-go's tests after them."""
import cases
import clientgo
from world import BIN


def work(world, out, *only):
    cases.work(world, out, *only)
    if world.name == "ours" and not only:
        clientgo.work(world, BIN / "clientgo.test")
