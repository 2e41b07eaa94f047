#pragma once
// Splits text into words by a WordRule.
#include <functional>
#include <memory>
#include <string_view>

#include "tapestry/data/tokenizer/tokenizer.h"

namespace tapestry::data {

/// The rules are regular expressions, which PCRE2 compiles to machine code. Any thread may call a splitter.
class WordSplitter {
 public:
  /// Throws Error if the library was built without PCRE2.
  explicit WordSplitter(WordRule rule);
  ~WordSplitter();
  WordSplitter(const WordSplitter&) = delete;
  WordSplitter& operator=(const WordSplitter&) = delete;

  /// Calls fn with the words of `text` in order. Together they are the whole text, which must be UTF-8.
  void split(std::string_view text, const std::function<void(std::string_view)>& fn) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry::data
