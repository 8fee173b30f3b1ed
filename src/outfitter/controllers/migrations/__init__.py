"""Live migrations: the controller, its phases as a pure function, and what a migration would do.

>>> from datetime import UTC, datetime
>>> from outfitter.controllers.migrations.migration_phase import MigrationView, decide
>>> job = {"metadata": {"name": "move", "namespace": "lab", "uid": "m"}, "spec": {"vmiName": "blue"}}
>>> decide(MigrationView(job, None, None, datetime.now(UTC))).act
'delete'
"""
