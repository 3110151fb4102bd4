"""Dataclasses as nodes of JAX pytrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def node(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose fields are traced, except static fields.

    A field is static if its metadata states this: ``field(metadata={"static": True})``.

    `jax.tree_util.register_dataclass` is not used because of a defect: trees of two different
    classes compare as equal if their fields are equal. A compiled program could then run with the
    fields of another class. Different hashes do not always prevent this error, since the table of
    compiled programs compares only seven bits of a hash.
    """
    node_class: Any = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(node_class)
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    traced = tuple(field.name for field in fields if field.name not in static)
    keys = tuple(jax.tree_util.GetAttrKey(name) for name in traced)

    def values(x: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(getattr(x, name) for name in names)

    def unflatten(aux: Iterable[Any], children: Iterable[Any]) -> Any:
        return node_class(**dict(zip(static + traced, (*aux, *children), strict=True)))

    jax.tree_util.register_pytree_with_keys(
        node_class,
        lambda x: (tuple(zip(keys, values(x, traced), strict=True)), values(x, static)),
        unflatten,
        lambda x: (values(x, traced), values(x, static)),
    )
    return node_class
