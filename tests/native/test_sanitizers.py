"""The native core's own test, built with the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

STORE = Path(__file__).parents[2] / "csrc" / "store"
NEAR = ("circle.cpp", "desk.cpp", "clerk.cpp")
KERNELS = {
    "portable": [],
    "avx2": ["-mavx2"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512dq"],
}
SANITIZERS = {  # the levels at which compiling and running together take least
    "address and undefined": ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-fsanitize=thread"],
}


@pytest.mark.parametrize("flags", SANITIZERS.values(), ids=SANITIZERS.keys())
def test_the_core_is_clean(flags: list[str], tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler builds heterps, so there must be one"
    common = [compiler, "-std=c++20", "-g1", "-Wall", "-Wextra", "-Werror", f"-I{STORE}", *flags]
    sources = [path for path in STORE.glob("*.cpp") if path.stem not in ("bindings", "kernels")]
    sources += [STORE.parent / "run" / "errands.cpp", *(STORE.parent / "near" / name for name in NEAR)]
    sources += [Path(__file__).with_name(name) for name in ("store_test.cpp", "near_test.cpp")]
    jobs = [(path, path.stem, []) for path in sources]
    jobs += [(STORE / "kernels.cpp", f"kernels_{isa}", [f"-DHETERPS_ISA={isa}", *with_isa])
             for isa, with_isa in KERNELS.items()]  # fmt: skip

    def build(job: tuple[Path, str, list[str]]) -> str:
        source, name, extra = job
        target = str(tmp_path / f"{name}.o")
        subprocess.run([*common, *extra, "-c", str(source), "-o", target], check=True)
        return target

    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(build, jobs))
    program = str(tmp_path / "store_test")
    subprocess.run([*common, *objects, "-o", program, "-lpthread"], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "ok"
