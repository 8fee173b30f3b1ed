"""What clients are shown of every kind: types and descriptions of its fields, and the columns of `kubectl get`. Read by the
embedded API server (`apiserver`) and by the CustomResourceDefinitions of a cluster (`install`), so that both show the same.

>>> [column.name for column in printer_columns.COLUMNS[kinds.MIGRATION]]
['Name', 'Phase', 'VMI', 'Age']
"""
