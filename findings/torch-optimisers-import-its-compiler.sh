#!/bin/bash
# torch 2.13.0 (CPU): making an optimiser imports torch._dynamo, the compiler, and with it SymPy, though nothing is ever
# compiled: add_param_group, zero_grad, state_dict and step are wrapped so that they first import what they would switch
# off. It takes longer than importing torch.
# Guess before running: torch.compile alone brings the compiler; "import torch" leaves it out for that reason.
# Met where each fit has a process of its own and few events: .9 s and 71 MB of some ten seconds and 570 MB.
# What to do: a subclass of the optimiser whose four methods are inspect.unwrap of torch's: the same bits.
# Seen: import torch .8 s, 210 MB; torch.optim.AdamW(...) .8 s, 73 MB, 823 modules, SymPy among them.
set -euo pipefail
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
python3 -m venv "$W/v"; "$W/v/bin/pip" install -q torch==2.13.0 numpy==2.4.6 2>/dev/null
"$W/v/bin/python" - <<'PY'
import sys
import time


def pss_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Pss:"))


def said(what, seconds, mb, modules):
    print(f"{what}: {time.process_time() - seconds:.1f} s, {pss_mb() - mb:.0f} MB, {len(sys.modules) - modules} modules")


now = time.process_time(), pss_mb(), len(sys.modules)
import torch

said(f"import torch {torch.__version__}", *now)
before = "torch._dynamo" in sys.modules
now = time.process_time(), pss_mb(), len(sys.modules)
torch.optim.AdamW(torch.nn.Linear(2, 1).parameters())
said("torch.optim.AdamW(...)", *now)
found = "torch._dynamo" in sys.modules, "sympy" in sys.modules
print("the compiler, SymPy:", found)
sys.exit(0 if not before and all(found) else "this has changed")
PY
