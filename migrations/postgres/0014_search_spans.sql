-- Search within a limited time, however many documents there are. migrations/sqlite/0014_search_spans.sql has
-- what FTS5 needs for it, which is less: its documents stand in the order of time.
--
-- An index of this kind has no order, and knows which words are in a document, but not which stand together.
-- So the index now also has the spans of time that a document lies in, by which search goes from the newest
-- on, and pairs of words, by which it finds phrases.

-- The spans that a document lies in: 2 to the power of 30 microseconds, which are 18 minutes, and up to
-- 2 to the power of 45, which is a year. The last digits of a span, in base 8, say which of these it is.
CREATE FUNCTION search_spans(doc bigint) RETURNS bigint[] LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT ARRAY[doc >> 42 << 3, doc >> 45 << 3 | 1, doc >> 48 << 3 | 2, doc >> 51 << 3 | 3, doc >> 54 << 3 | 4, doc >> 57 << 3 | 5]
$$;
COMMENT ON FUNCTION search_spans(bigint) IS 'The spans of time that a document of search_docs lies in.';

-- Of documents that are there already nothing is known; they are found all the same, and are indexed again.
ALTER TABLE search_docs ADD COLUMN pairs smallint[] NOT NULL DEFAULT '{-32768}';
COMMENT ON COLUMN search_docs.pairs IS 'its words in pairs, as they stand together: a number for each, made of a hash, so that some have the same; -32768 if they are not known';

-- What was added last stands in a list, which every look into the index goes through: it is kept short.
DROP INDEX search_docs_on_words;
CREATE INDEX search_docs_on_words ON search_docs USING gin (words, pairs, search_spans(doc)) WITH (gin_pending_list_limit = 128);

DO $$
DECLARE
    home text;
BEGIN
    SELECT nspname INTO home FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'pg_trgm';
    DROP INDEX IF EXISTS search_docs_on_line;
    IF home IS NOT NULL THEN
        EXECUTE format('CREATE INDEX search_docs_on_line ON search_docs USING gin (line %I.gin_trgm_ops, words, search_spans(doc)) WITH (gin_pending_list_limit = 128) WHERE line IS NOT NULL', home);
    END IF;
END $$;

INSERT INTO search_pending SELECT session_id, source, seq, item, 1 FROM search_docs ON CONFLICT DO NOTHING;
