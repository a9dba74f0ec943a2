"""What jobs about a wrong spec share: no advice to give data up while they are there, and the way back."""
import json
import os
import time

from bed import Failed, claim, say


def advice(cluster):
    """All that is said of a cluster: its status, its Pilots' and what events say."""
    pilots = {name: pilot.get("status", {}) for name, pilot in cluster.pilots().items()}
    return [json.dumps(cluster.status()), json.dumps(pilots), *(event.get("note") or "" for event in cluster.events())]


# For how long at most nothing may say that data are to be given up.
LONGEST = int(os.environ.get("MISTAKES_SECONDS", "200"))


def is_never_told_to_give_up(cluster, seconds=200):
    """The advice to give data up, which are on a volume that is there, once came after two minutes and a half."""
    seconds = min(seconds, LONGEST)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for text in advice(cluster):
            for word in ("give-up=", "give its data up", "give the data up"):
                if word in text:
                    raise Failed(f"data that are there are to be given up: {text}\n{cluster.summary()}")
        time.sleep(3)
    claim(f"for {seconds} s nothing says that data are to be given up", True)
    say("    it says: " + "; ".join(f"{entry['type']}={entry['status']}/{entry.get('reason')}: {entry.get('message')}"
                                    for entry in cluster.status().get("conditions", []) if entry["type"] in ("Ready", "Stalled")))


def all_is_said(cluster, word, deadline=300):
    """Waits until the status of the cluster or of a Pilot has this word; returns what a person reads."""
    def check():
        texts = advice(cluster)[:2]
        return [text for text in texts if word in text] or "; ".join(texts)
    return cluster.wait(f"a status that says {word}", check, deadline)[0]


def heals(cluster, mend, nodes, deadline=420):
    """Corrects the spec; returns after how many seconds the cluster is Ready with all nodes."""
    begun = time.monotonic()
    mend()
    cluster.ready(nodes=nodes, deadline=deadline)
    took = time.monotonic() - begun
    say(f"    Ready {took:.0f} s after the correction")
    return took
