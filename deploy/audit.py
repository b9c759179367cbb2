"""Known vulnerabilities of what the images pin: `make check` runs it.

Python's come from PyPI's advisories through pip-audit, Rust's from RustSec through cargo-audit
where that is installed. Where the data cannot be reached it says so and passes: no answer is not a
clean one, and the line is in CI's log.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def audit_python(name: str) -> bool:
    """Returns whether no pinned package of a target is known to be vulnerable."""
    pinned = ROOT / "deploy" / "requirements" / f"{name}.txt"
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes",
         "--progress-spinner", "off", "--format", "json", "--requirement", str(pinned)],
        capture_output=True,
        text=True,
    )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError):
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(f"{name}: NOT audited: {reason[:200]}")
        return True
    asked = [p for p in packages if "skip_reason" not in p]
    bad = [p for p in asked if p["vulns"]]
    for package in bad:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "nowhere yet"
            print(f"{name}: {package['name']} {package['version']}: {vulnerability['id']}, "
                  f"fixed in {fixed}")  # fmt: skip
    if not asked:
        print(f"{name}: NOT audited: the advisories cannot be reached from here")
    elif not bad:
        print(f"{name}: {len(asked)} of {len(packages)} packages asked for, none known vulnerable")
    return not bad


def audit_rust() -> bool:
    """Returns the same for the solver's crates."""
    if shutil.which("cargo-audit") is None:
        print("solver: NOT audited: cargo-audit is not installed")
        return True
    done = subprocess.run(["cargo", "audit"], cwd=ROOT / "solver", capture_output=True, text=True)
    unreachable = "error: " in done.stderr and "vulnerab" not in done.stderr
    print("solver: NOT audited: the advisories cannot be reached" if unreachable else done.stdout)
    return done.returncode == 0 or unreachable


if __name__ == "__main__":
    clean = [audit_python(name) for name in ("service", "worker", "agent", "docs")]
    sys.exit(0 if all([*clean, audit_rust()]) else 1)
