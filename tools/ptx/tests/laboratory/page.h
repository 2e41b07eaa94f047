#pragma once
#include <string>

/// Whether the text is the pattern, in which "..." stands for anything.
bool matches(const std::string& text, const std::string& pattern);
/// Runs the calls of tapestry-ptx that a page quotes, and checks that each prints what the page says. Returns
/// their number.
int check_quoted_commands(const std::string& page);
