"""Files of the SQLite backend: the lock of the data folder, the database, its log, the record of the newest acknowledged
revision. Used by `store.sqlite` alone.

    DATA/lock                     process id of the process that uses the folder
    DATA/outfitter.db             all objects
    DATA/outfitter.db-wal         the newest transactions, until they are copied into the database
    DATA/outfitter.db-revision    the newest acknowledged revision
"""
