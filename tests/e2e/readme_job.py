"""README.md's block for Kubernetes, pasted as a whole into an empty cluster.

The block ends with cqlsh, which the image of the bed does not have (no registry at hand has it whole): there it ends with 127.
"""
import re

from bed import CTR, ROOT, RUN, claim, main, run, step
from navigator import is_installed

# As the image's file names it.
IMAGE = "quay.io/jetstack/navigator:v0.2.0"


def job():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"\n## On Kubernetes\n.*?\n```\n(.*?)```\n", text, re.DOTALL)[1]
    build, commands = block.split("\n", 1)
    claim("the block begins with the image, which is there already", build == "make image", build)
    # The registry in the block stands for the reader's.
    run(*CTR, "images", "tag", IMAGE, re.search(r"--image (\S+)", commands)[1])
    script = f"set -eo pipefail; cd {ROOT}; export KUBECONFIG={RUN / 'admin.kubeconfig'}\n"
    before, shell = re.fullmatch(r"(.*\n)([^\n]+)\n", commands, re.DOTALL).groups()
    with step("the block, as pasted"):
        print(run("bash", "-c", script + before, timeout=1200).stdout)
    with step("its last command, with a statement"):
        done = run("bash", "-c", script + shell, stdin="SELECT release_version FROM system.local;\n", check=False)
        print(done.stdout, done.stderr, sep="\n")
        claim("it asks for cqlsh in the node's container", done.returncode == 127 and "/bin/cqlsh: not found" in done.stderr, done.returncode)
    is_installed()


if __name__ == "__main__":
    main(job)
