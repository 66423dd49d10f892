"""Writes diag/linting/keys.json, the names of the keys that DeepSpeed, Accelerate, Transformers and torchtitan read:
``python -m tests.lint.make_keys``. It adds what the installed versions have; names of other versions stay."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from diag.linting import model

KEYS = Path(model.__file__).with_name("keys.json")


def deepspeed_keys() -> Iterator[tuple[str, set[str]]]:
    import deepspeed.runtime.config as config
    import deepspeed.runtime.precision_config as precision
    import deepspeed.runtime.zero.config as zero
    import deepspeed.runtime.zero.offload_config as offload

    yield "deepspeed.top", _read_by(config)
    yield "deepspeed.zero", _fields(zero.DeepSpeedZeroConfig)
    yield "deepspeed.offload_param", _fields(offload.DeepSpeedZeroOffloadParamConfig)
    yield "deepspeed.offload_optimizer", _fields(offload.DeepSpeedZeroOffloadOptimizerConfig)
    yield "deepspeed.bf16", _fields(precision.DeepSpeedBF16Config)
    yield "deepspeed.fp16", _fields(precision.DeepSpeedFP16Config)


def _fields(kind: Any) -> set[str]:
    """Names and aliases of a pydantic model."""
    return {name for key, field in kind.model_fields.items() for name in (key, field.alias) if name}


def _read_by(config: ModuleType) -> set[str]:
    """The keys that DeepSpeed's functions look up in ``param_dict``, by the constants that name them."""
    found: set[Any] = set()
    assert config.__file__ is not None
    for call in ast.walk(ast.parse(Path(config.__file__).read_text())):
        match call:
            case (
                ast.Call(args=[ast.Name("param_dict"), ast.Name(name), *_])
                | ast.Compare(left=ast.Name(name), ops=[ast.In()], comparators=[ast.Name("param_dict")])
            ):
                found.add(getattr(config, name, None))
    return {key for key in found if isinstance(key, str)}


def other_keys() -> Iterator[tuple[str, set[str]]]:
    from accelerate.commands.config.config_args import ClusterConfig
    from transformers import TrainingArguments

    yield "accelerate", {field.name for field in dataclasses.fields(ClusterConfig)}
    yield "arguments", {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    yield from _titan_tables()


def _titan_tables() -> Iterator[tuple[str, set[str]]]:
    """By its source: importing torchtitan needs a GPU's packages."""
    (folder,) = find_spec("torchtitan").submodule_search_locations  # type: ignore[union-attr, misc]
    classes = {
        one.name: {str(ast.unparse(field.target)): ast.unparse(field.annotation) for field in one.body
                   if isinstance(field, ast.AnnAssign)}
        for one in ast.parse((Path(folder) / "config/job_config.py").read_text()).body
        if isinstance(one, ast.ClassDef)
    }  # fmt: skip
    for table, kind in classes["JobConfig"].items():
        yield f"torchtitan.{table}", set(classes[kind])


def main() -> None:
    keys: dict[str, list[str] | None] = json.loads(KEYS.read_text())
    for name, found in (*deepspeed_keys(), *other_keys()):
        known = keys.get(name, [])
        if known is not None:  # None: any key, as models and experiments add their own
            if new := sorted(found - set(known)):
                print(f"{name}: {', '.join(new)}")
            keys[name] = sorted({*known, *found})
    lines = [f"  {json.dumps(name)}: {json.dumps(keys[name])}" for name in sorted(keys)]
    KEYS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
