// The log: one line per call on stderr, never on stdout (stdout is for results), each printable().
// Write errors are ignored: a lost terminal must not stop a run. Thread-safe.
#pragma once

#include <string>

namespace pagoda {

void log_info(const std::string& line);
void log_warn(const std::string& line);

// Silences log_info (not warnings), for --quiet and tests.
void set_log_quiet(bool quiet);

// A status line redrawn in place when stderr is a terminal; log lines erase and redraw it. With no
// terminal this does nothing. An empty text removes it.
void set_status_line(const std::string& text);
bool log_is_terminal();

// Makes a word from outside safe to print inside a line: escapes what terminal_text() escapes, and
// line feeds and tabs too; cuts between characters once it has `max_length` bytes.
std::string printable(const std::string& text, size_t max_length = 200);

}  // namespace pagoda
