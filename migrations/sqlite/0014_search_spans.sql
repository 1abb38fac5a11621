-- The counterpart of migrations/postgres/0014_search_spans.sql. FTS5 knows where words stand, and goes from the
-- newest document on by itself.
SELECT 1;
