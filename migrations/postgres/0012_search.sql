-- Search: what can be found of prompts, messages, tool calls, commands and paths.
-- migrations/sqlite/0012_search.sql has the same names, but for the columns words and line: what they are
-- for are tables of FTS5 there.
--
-- The index is filled behind the frames, a step at a time, so that recording does not wait for it. Triggers
-- write down which rows have changed, and take out at once what was deleted or blanked.

CREATE TABLE search_docs (
    doc bigint NOT NULL,
    session_id uuid NOT NULL,
    source text NOT NULL,
    seq bigint NOT NULL,
    item bigint NOT NULL,
    turn bigint,
    agent text,
    label text,
    words tsvector,
    line text,
    PRIMARY KEY (doc)
);
CREATE UNIQUE INDEX search_docs_on_row ON search_docs (session_id, source, seq, item);
-- What was added last stands in a list, which every search goes through: it is kept short.
CREATE INDEX search_docs_on_words ON search_docs USING gin (words) WITH (gin_pending_list_limit = 512);
COMMENT ON TABLE search_docs IS 'A row that search can find. Its text is in the row that it points to.';
COMMENT ON COLUMN search_docs.doc IS 'its number, in the order of time: microseconds since 1970 times 4096, and a number to keep apart what came at once';
COMMENT ON COLUMN search_docs.session_id IS 'the session';
COMMENT ON COLUMN search_docs.source IS 'where it stands: prompt (turns), message, tool (tool_calls), command, path (file_accesses)';
COMMENT ON COLUMN search_docs.seq IS 'the row''s number there: turn, message, call or seq';
COMMENT ON COLUMN search_docs.item IS 'file_accesses.item; 0 for all others';
COMMENT ON COLUMN search_docs.turn IS 'the turn it belongs to; null outside turns';
COMMENT ON COLUMN search_docs.agent IS 'the agent at work';
COMMENT ON COLUMN search_docs.label IS 'who said it, the tool''s name, how the command was run, how the file was accessed';
COMMENT ON COLUMN search_docs.words IS 'its words, folded, with their places, and tags that begin with =, which say to whom and what it belongs';
COMMENT ON COLUMN search_docs.line IS 'a command or a path, folded, to be found by its parts; null for all others';

CREATE TABLE search_pending (
    session_id uuid NOT NULL,
    source text NOT NULL,
    seq bigint NOT NULL,
    item bigint NOT NULL,
    marks bigint NOT NULL,
    PRIMARY KEY (session_id, source, seq, item)
);
COMMENT ON TABLE search_pending IS 'A row that has changed and is to be indexed for search.';
COMMENT ON COLUMN search_pending.session_id IS 'as in search_docs';
COMMENT ON COLUMN search_pending.source IS 'as in search_docs';
COMMENT ON COLUMN search_pending.seq IS 'as in search_docs';
COMMENT ON COLUMN search_pending.item IS 'as in search_docs';
COMMENT ON COLUMN search_pending.marks IS 'how often it has changed since it was indexed';

-- Parts of commands and paths are found by their trigrams. Whoever owns the database may add the extension;
-- where that is not so, search finds their words, and says how to have more.
DO $$
DECLARE
    home text;
BEGIN
    CREATE EXTENSION IF NOT EXISTS pg_trgm;
    SELECT nspname INTO home FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'pg_trgm';
    EXECUTE format('CREATE INDEX search_docs_on_line ON search_docs USING gin (line %I.gin_trgm_ops) WITH (gin_pending_list_limit = 512)', home);
EXCEPTION WHEN OTHERS THEN
    RAISE NOTICE 'search finds no parts of commands and paths: %', SQLERRM;
END $$;

-- Writes down what has changed. It runs with the rights of the owner: whoever may write the rows need not
-- have rights to the index. The same for each table; a message that only grows can be found by what it was
-- until it is indexed again.
DO $$
DECLARE
    made record;
BEGIN
    FOR made IN
        SELECT * FROM (VALUES
            ('turns', 'prompt', 'turn', '0', 'prompt', 'prompt IS NOT NULL', 'true'),
            ('messages', 'message', 'message', '0', 'text', 'text IS NOT NULL', 'NOT starts_with(coalesce(n.text, ''''), coalesce(o.text, ''''))'),
            ('tool_calls', 'tool', 'call', '0', 'name, title, input', 'true', 'true'),
            ('commands', 'command', 'seq', '0', 'line', 'line IS NOT NULL', 'true'),
            ('file_accesses', 'path', 'seq', 'item', 'path', 'path IS NOT NULL', 'true')
        ) AS tables (name, source, seq, item, texts, has_text, is_other)
    LOOP
        EXECUTE format($body$
            CREATE FUNCTION search_%1$s_new() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$
            BEGIN
                INSERT INTO search_pending AS p SELECT session_id, %2$L, %3$s, %4$s, 1 FROM added WHERE %6$s
                ON CONFLICT (session_id, source, seq, item) DO UPDATE SET marks = p.marks + 1;
                RETURN NULL;
            END $f$;
            CREATE FUNCTION search_%1$s_changed() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$
            BEGIN
                INSERT INTO search_pending AS p SELECT n.session_id, %2$L, n.%3$s, %9$s, 1
                FROM added n JOIN removed o ON o.session_id = n.session_id AND o.%3$s = n.%3$s AND %8$s
                WHERE (%5$s) IS DISTINCT FROM (%10$s)
                ON CONFLICT (session_id, source, seq, item) DO UPDATE SET marks = p.marks + 1;
                DELETE FROM search_docs d USING added n JOIN removed o
                    ON o.session_id = n.session_id AND o.%3$s = n.%3$s AND %8$s
                WHERE (%5$s) IS DISTINCT FROM (%10$s) AND %7$s
                    AND d.session_id = n.session_id AND d.source = %2$L AND d.seq = n.%3$s AND d.item = %9$s;
                RETURN NULL;
            END $f$;
            CREATE FUNCTION search_%1$s_gone() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $f$
            BEGIN
                -- In this order: whoever indexes one of these rows now is waited for.
                DELETE FROM search_pending p USING removed o
                WHERE p.session_id = o.session_id AND p.source = %2$L AND p.seq = o.%3$s AND p.item = %11$s;
                DELETE FROM search_docs d USING removed o
                WHERE d.session_id = o.session_id AND d.source = %2$L AND d.seq = o.%3$s AND d.item = %11$s;
                RETURN NULL;
            END $f$;
            CREATE TRIGGER search_new AFTER INSERT ON %1$s REFERENCING NEW TABLE AS added
                FOR EACH STATEMENT EXECUTE FUNCTION search_%1$s_new();
            CREATE TRIGGER search_changed AFTER UPDATE ON %1$s REFERENCING NEW TABLE AS added OLD TABLE AS removed
                FOR EACH STATEMENT EXECUTE FUNCTION search_%1$s_changed();
            CREATE TRIGGER search_gone AFTER DELETE ON %1$s REFERENCING OLD TABLE AS removed
                FOR EACH STATEMENT EXECUTE FUNCTION search_%1$s_gone();
            $body$,
            made.name, made.source, made.seq, made.item,
            (SELECT string_agg('n.' || part, ', ') FROM regexp_split_to_table(made.texts, ', ') AS part),
            made.has_text, made.is_other,
            CASE made.item WHEN '0' THEN 'true' ELSE 'o.item = n.item' END,
            CASE made.item WHEN '0' THEN '0' ELSE 'n.item' END,
            (SELECT string_agg('o.' || part, ', ') FROM regexp_split_to_table(made.texts, ', ') AS part),
            CASE made.item WHEN '0' THEN '0' ELSE 'o.item' END);
        -- Names are looked up where this migration put them, whoever writes.
        EXECUTE format('ALTER FUNCTION search_%s_new() SET search_path = %I, pg_catalog, pg_temp', made.name, current_schema());
        EXECUTE format('ALTER FUNCTION search_%s_changed() SET search_path = %I, pg_catalog, pg_temp', made.name, current_schema());
        EXECUTE format('ALTER FUNCTION search_%s_gone() SET search_path = %I, pg_catalog, pg_temp', made.name, current_schema());
    END LOOP;
END $$;

-- What was there before there was a search.
INSERT INTO search_pending SELECT session_id, 'prompt', turn, 0, 1 FROM turns WHERE prompt IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'message', message, 0, 1 FROM messages WHERE text IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'tool', call, 0, 1 FROM tool_calls;
INSERT INTO search_pending SELECT session_id, 'command', seq, 0, 1 FROM commands WHERE line IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'path', seq, item, 1 FROM file_accesses WHERE path IS NOT NULL;
