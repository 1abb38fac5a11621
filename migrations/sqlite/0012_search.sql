-- Search: what can be found of prompts, messages, tool calls, commands and paths.
-- The same names and columns as in migrations/postgres/0012_search.sql, but for what the databases do
-- differently: FTS5 has tables of its own for words and lines, where Postgres has columns.
--
-- The index is filled behind the frames, a step at a time, so that recording does not wait for it. Triggers
-- write down which rows have changed, and take out at once what was deleted or blanked.

-- A row that can be found. It has no text: that is in the row that it points to.
CREATE TABLE search_docs (
    doc INTEGER NOT NULL, -- its number, in the order of time: microseconds since 1970 times 4096, and a number to keep apart what came at once
    session_id TEXT NOT NULL, -- the session
    source TEXT NOT NULL, -- where it stands: prompt (turns), message, tool (tool_calls), command, path (file_accesses)
    seq INTEGER NOT NULL, -- the row's number there: turn, message, call or seq
    item INTEGER NOT NULL, -- file_accesses.item; 0 for all others
    turn INTEGER, -- the turn it belongs to; null outside turns
    agent TEXT, -- the agent at work
    label TEXT, -- who said it, the tool's name, how the command was run, how the file was accessed
    PRIMARY KEY (doc)
);
CREATE UNIQUE INDEX search_docs_on_row ON search_docs (session_id, source, seq, item);

-- A row that has changed and is to be indexed.
CREATE TABLE search_pending (
    session_id TEXT NOT NULL, -- as in search_docs
    source TEXT NOT NULL, -- as in search_docs
    seq INTEGER NOT NULL, -- as in search_docs
    item INTEGER NOT NULL, -- as in search_docs
    marks INTEGER NOT NULL, -- how often it has changed since it was indexed
    PRIMARY KEY (session_id, source, seq, item)
);

-- Words of everything. They come folded and parted by blanks; the tokenizer takes all that is not ASCII for
-- letters, and so leaves them as they are. Tags say to whom and what a row belongs.
CREATE VIRTUAL TABLE search_words USING fts5 (words, tags, tokenize = 'ascii', content = '', contentless_delete = 1);
-- Parts of commands and paths. A tag is a trigram here.
CREATE VIRTUAL TABLE search_lines USING fts5 (line, tags, tokenize = 'trigram case_sensitive 1', content = '', contentless_delete = 1);

CREATE TRIGGER search_docs_gone AFTER DELETE ON search_docs BEGIN
    DELETE FROM search_words WHERE rowid = old.doc;
    DELETE FROM search_lines WHERE rowid = old.doc;
END;

CREATE TRIGGER search_turns_new AFTER INSERT ON turns WHEN new.prompt IS NOT NULL BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'prompt', new.turn, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
END;
CREATE TRIGGER search_turns_changed AFTER UPDATE OF prompt ON turns WHEN new.prompt IS NOT old.prompt BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'prompt', new.turn, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
    DELETE FROM search_docs WHERE session_id = new.session_id AND source = 'prompt' AND seq = new.turn AND item = 0;
END;
CREATE TRIGGER search_turns_gone AFTER DELETE ON turns BEGIN
    DELETE FROM search_pending WHERE session_id = old.session_id AND source = 'prompt' AND seq = old.turn AND item = 0;
    DELETE FROM search_docs WHERE session_id = old.session_id AND source = 'prompt' AND seq = old.turn AND item = 0;
END;

CREATE TRIGGER search_messages_new AFTER INSERT ON messages WHEN new.text IS NOT NULL BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'message', new.message, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
END;
-- A message that only grows can be found by what it was until it is indexed again.
CREATE TRIGGER search_messages_changed AFTER UPDATE OF text ON messages WHEN new.text IS NOT old.text BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'message', new.message, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
    DELETE FROM search_docs WHERE session_id = new.session_id AND source = 'message' AND seq = new.message AND item = 0
        AND substr(coalesce(new.text, ''), 1, length(old.text)) IS NOT old.text;
END;
CREATE TRIGGER search_messages_gone AFTER DELETE ON messages BEGIN
    DELETE FROM search_pending WHERE session_id = old.session_id AND source = 'message' AND seq = old.message AND item = 0;
    DELETE FROM search_docs WHERE session_id = old.session_id AND source = 'message' AND seq = old.message AND item = 0;
END;

CREATE TRIGGER search_tool_calls_new AFTER INSERT ON tool_calls BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'tool', new.call, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
END;
CREATE TRIGGER search_tool_calls_changed AFTER UPDATE OF name, title, input ON tool_calls
WHEN new.name IS NOT old.name OR new.title IS NOT old.title OR new.input IS NOT old.input BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'tool', new.call, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
    DELETE FROM search_docs WHERE session_id = new.session_id AND source = 'tool' AND seq = new.call AND item = 0;
END;
CREATE TRIGGER search_tool_calls_gone AFTER DELETE ON tool_calls BEGIN
    DELETE FROM search_pending WHERE session_id = old.session_id AND source = 'tool' AND seq = old.call AND item = 0;
    DELETE FROM search_docs WHERE session_id = old.session_id AND source = 'tool' AND seq = old.call AND item = 0;
END;

CREATE TRIGGER search_commands_new AFTER INSERT ON commands WHEN new.line IS NOT NULL BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'command', new.seq, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
END;
CREATE TRIGGER search_commands_changed AFTER UPDATE OF line ON commands WHEN new.line IS NOT old.line BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'command', new.seq, 0, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
    DELETE FROM search_docs WHERE session_id = new.session_id AND source = 'command' AND seq = new.seq AND item = 0;
END;
CREATE TRIGGER search_commands_gone AFTER DELETE ON commands BEGIN
    DELETE FROM search_pending WHERE session_id = old.session_id AND source = 'command' AND seq = old.seq AND item = 0;
    DELETE FROM search_docs WHERE session_id = old.session_id AND source = 'command' AND seq = old.seq AND item = 0;
END;

CREATE TRIGGER search_file_accesses_new AFTER INSERT ON file_accesses WHEN new.path IS NOT NULL BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'path', new.seq, new.item, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
END;
CREATE TRIGGER search_file_accesses_changed AFTER UPDATE OF path ON file_accesses WHEN new.path IS NOT old.path BEGIN
    INSERT INTO search_pending VALUES (new.session_id, 'path', new.seq, new.item, 1)
    ON CONFLICT DO UPDATE SET marks = marks + 1;
    DELETE FROM search_docs WHERE session_id = new.session_id AND source = 'path' AND seq = new.seq AND item = new.item;
END;
CREATE TRIGGER search_file_accesses_gone AFTER DELETE ON file_accesses BEGIN
    DELETE FROM search_pending WHERE session_id = old.session_id AND source = 'path' AND seq = old.seq AND item = old.item;
    DELETE FROM search_docs WHERE session_id = old.session_id AND source = 'path' AND seq = old.seq AND item = old.item;
END;

-- What was there before there was a search.
INSERT INTO search_pending SELECT session_id, 'prompt', turn, 0, 1 FROM turns WHERE prompt IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'message', message, 0, 1 FROM messages WHERE text IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'tool', call, 0, 1 FROM tool_calls;
INSERT INTO search_pending SELECT session_id, 'command', seq, 0, 1 FROM commands WHERE line IS NOT NULL;
INSERT INTO search_pending SELECT session_id, 'path', seq, item, 1 FROM file_accesses WHERE path IS NOT NULL;
