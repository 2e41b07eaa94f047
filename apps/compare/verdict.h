#pragma once
// What the measurements say: which mode is fastest, whether that is decided, and where the time goes that a
// perfect split would save. The terminal, the JSON and the page show these sentences; nothing else makes
// them.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/report.h"

namespace apps::compare {

/// A sentence in pieces, so that a page can set names of modes apart without parsing text.
struct Phrase {
  enum class Style : std::uint8_t { plain, mode, strong };
  Style style = Style::plain;
  std::string text;
};
using Sentence = std::vector<Phrase>;
std::string text_of(const Sentence& sentence);

/// The number of a value, counted from both ends of `n` sorted values, such that the two values enclose the
/// median of the distribution with a probability of 95% or more (order statistics, as in the sign test). 1 is
/// the first value. 0 if there are fewer than six values, which are too few.
int interval_index(int n);

/// The ratio of the step times of two modes, less 1. Modes take turns, so times of the same round are
/// divided: what slowed both of them cancels out.
struct Verdict {
  double low = 0, median = 0, high = 0;  ///< the interval of the median, and the median
  /// "fastest" (the mode itself), "equal" (the interval lies within 2%), "slower" (it lies above 0) or
  /// "undecided".
  std::string word;
};
Verdict verdict(const std::vector<double>& rounds_s, const std::vector<double>& fastest_s);

/// The parts of step - single / devices, in seconds. They add up to it.
struct Losses {
  double communication_s = 0, idle_s = 0, update_s = 0, compute_s = 0;
};
Losses losses_of(const StepBreakdown& step, const StepBreakdown& single, int devices);

struct Place {
  std::string name;
  std::string place;  ///< "1", "1=" if modes share it, "~1" if nothing is decided
  Verdict against_fastest;
};

/// The answer for devices that hold a limited number of bytes.
struct Answer {
  std::int64_t limit_bytes = 0;  ///< holds for limits from here to the next answer's
  Sentence headline, lead;
  Sentence shared;            ///< why modes share the first place; empty if none do
  std::vector<Place> places;  ///< the modes that fit, by ascending place
  int first = 0;              ///< the number of modes that share the first place
};

/// What is said of one mode, in the order of Report::results.
struct Remark {
  double spread = 0;             ///< slowest round / fastest round - 1, without what slowed the whole machine
  bool noisy = false;            ///< the spread exceeds 15%
  std::optional<Losses> losses;  ///< none without a measurement of single
  std::string why;               ///< "11.7 ms: wait for gradients"
  std::string long_why;          ///< all parts of the losses
  Sentence failure;              ///< why the mode has no place; empty if it has one
};

struct Judgement {
  std::vector<Remark> remarks;
  std::vector<double> machine;  ///< per round: the median over the modes of round / step
  std::vector<Sentence> notes;  ///< what to know before the answer: a machine that changed, too few rounds
  Sentence same_losses;
  std::vector<Answer> answers;  ///< by ascending limit; the last one is that without a limit
  /// The answer for Report::memory_limit_bytes.
  std::size_t main_answer = 0;
  const Answer& main() const { return answers[main_answer]; }
};
Judgement judge(const Report& report);

}  // namespace apps::compare
