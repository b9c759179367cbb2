"""The bundles of a watched curve over several kinds of devices.

It only adds: releases from 0003 on still work.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Not in a batch: SQLite adds a nullable column without copying the table.
    op.add_column("watches", sa.Column("bundles", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("watches", schema=None) as batch_op:
        batch_op.drop_column("bundles")
