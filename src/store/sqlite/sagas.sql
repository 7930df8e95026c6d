-- A later step of the schema: groups of calls that are undone as a whole.

ALTER TABLE calls ADD COLUMN saga_id TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN undo    TEXT;           -- how it is undone, as JSON: [[tool, call_id] or null, skipped]
CREATE INDEX ledger_saga ON calls (tenant, saga_id, created_at) WHERE saga_id <> '';
