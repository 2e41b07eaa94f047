#pragma once
// Small models and texts for the tests of apps/gpt.
#include <string>
#include <vector>

#include "tests/apps/program.h"

namespace tests {

/// Runs `gpt` on one thread.
Ended gpt(std::vector<std::string> arguments, const std::string& input = {});
Launch gpt_launch(std::vector<std::string> arguments);

/// SmolLM2's chat template, as a string of JSON.
const char* smollm2_template();
/// Writes a text in which each word decides the next one, so that a small model can learn it.
std::string write_story(const std::string& path, int sentences = 400);
/// Writes a folder of a random model with a tokenizer whose control tokens are those of SmolLM2's chat
/// template.
std::string write_model_folder(const std::string& path, const std::string& family = "llama",
                               std::int64_t context = 96);
/// A file of llm.c with tokens of 16 bits.
std::string token_file(const std::vector<int>& ids);

}  // namespace tests
