"""Sizes of what is stored, questions and answers by reference, bytes accepted a day.

It only adds: releases from 0003 on still work.
"""

from __future__ import annotations

import json
import zlib

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_SIZED = ("hardware", "results", "runs", "launches")
_AT_ONCE = 100


def upgrade() -> None:
    op.create_table(
        "question_blobs",
        sa.Column("id", sa.String(length=71), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_question_blobs"),
    )
    op.create_table(
        "accepted_bytes",
        sa.Column("tenant_id", sa.String(length=64), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_accepted_bytes_tenant_id"),
        sa.PrimaryKeyConstraint("tenant_id", "day", name="pk_accepted_bytes"),
    )
    for table in _SIZED:
        with op.batch_alter_table(table, schema=None) as batch_op:
            batch_op.add_column(
                sa.Column("size_bytes", sa.Integer(), server_default="0", nullable=False)
            )
    with op.batch_alter_table("hardware", schema=None) as batch_op:
        batch_op.add_column(sa.Column("summary", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("origin", sa.String(length=16), nullable=True))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("blob_id", sa.String(length=71), nullable=True))
        batch_op.create_index("ix_jobs_blob_id", ["blob_id"], unique=False)
        batch_op.create_index("ix_jobs_ended", ["tenant_id", "ended_at"], unique=False)
    with op.batch_alter_table("results", schema=None) as batch_op:
        batch_op.create_index("ix_results_made", ["tenant_id", "created_at"], unique=False)
    with op.batch_alter_table("launches", schema=None) as batch_op:
        batch_op.create_index("ix_launches_ended", ["ended_at"], unique=False)
    with op.batch_alter_table("idempotency", schema=None) as batch_op:
        batch_op.add_column(sa.Column("reference", sa.JSON(), nullable=True))
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("by_reference", sa.Boolean(), server_default=sa.false(), nullable=False)
        )
    op.execute("UPDATE results SET size_bytes = length(content)")
    op.execute("UPDATE hardware SET size_bytes = length(CAST(document AS TEXT))")
    op.execute("UPDATE runs SET size_bytes = length(CAST(document AS TEXT))")
    op.execute(
        "UPDATE launches SET size_bytes = length(CAST(request AS TEXT)) + COALESCE(length(plan), 0)"
    )


def downgrade() -> None:
    _write_questions_out()
    # What refers to something cannot be repeated without it: it is forgotten, as after a day.
    op.execute("DELETE FROM idempotency WHERE reference IS NOT NULL")
    for index in ("ix_launches_ended", "ix_results_made", "ix_jobs_ended", "ix_jobs_blob_id"):
        op.execute(f"DROP INDEX {index}")
    for table, column in (
        ("workers", "by_reference"),
        ("idempotency", "reference"),
        ("jobs", "blob_id"),
        ("hardware", "origin"),
        ("hardware", "summary"),
        *((table, "size_bytes") for table in _SIZED),
    ):
        # Not Alembic's batches: on SQLite they rebuild the table, which what refers to its rows
        # does not allow.
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    op.drop_table("accepted_bytes")
    op.drop_table("question_blobs")


def _write_questions_out() -> None:
    """Puts the parts that questions refer to back into them."""
    bind = op.get_bind()
    jobs = sa.table("jobs", sa.column("id"), sa.column("question", sa.JSON), sa.column("blob_id"))
    blobs = sa.table("question_blobs", sa.column("id"), sa.column("content", sa.LargeBinary))
    query = (
        sa.select(jobs.c.id, jobs.c.question, blobs.c.content)
        .join(blobs, blobs.c.id == jobs.c.blob_id)
        .limit(_AT_ONCE)
    )
    while rows := bind.execute(query).all():
        for job_id, question, content in rows:
            name = "offers" if "blob" in question.get("offers", ()) else "hardware"
            whole = {**question, name: json.loads(zlib.decompress(content))}
            bind.execute(
                sa.update(jobs).where(jobs.c.id == job_id).values(question=whole, blob_id=None)
            )
