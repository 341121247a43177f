"""The curves of a run as an event file of TensorBoard, written through its own package, which is optional."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attnlab.errors import UserError
from attnlab.folders import refuse_existing, write_folder
from attnlab.runs import Run

CURVES = ("loss", "rate", "epoch", "tokens")


def write_events(run: Path, folder: Path) -> Path:
    """Write the metrics of a run as one event file into a new folder, and return its path."""
    opened = Run(run)
    rows = opened.metrics()
    if not rows:
        raise UserError(f"{run} has no steps to export: train it first")
    refuse_existing(folder)
    began = (run / "config.json").stat().st_mtime  # steps know their seconds since the start only
    name = f"events.out.tfevents.{int(began)}.attnlab"
    write_folder(folder, "tensorboard", {name: event_file(rows, began)})
    return folder / name


def event_file(rows: Iterable[Mapping[str, Any]], began: float) -> bytes:
    """Steps as TensorBoard stores them: a record a step, with every curve in it."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise UserError("TensorBoard's package is not installed: pip install 'attnlab[tensorboard]'") from None
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    writer.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
    before = 0.0
    for row in rows:
        curves = {name: row[name] for name in CURVES if isinstance(row.get(name), int | float)}
        seconds = row.get("seconds", before)
        values = [Summary.Value(tag=f"train/{name}", simple_value=value) for name, value in curves.items()]
        event = Event(wall_time=began + seconds, step=row["step"], summary=Summary(value=values))
        writer.write(event.SerializeToString())
        before = seconds
    writer.flush()
    return stream.getvalue()
