#include "tapestry/apps/compare/verdict.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "tapestry/core/error.h"

namespace apps::compare {
namespace {

using tapestry::Activity;
using tapestry::concat;
using tapestry::Span;

constexpr double kMiB = 1 << 20;
constexpr double kEqual = 0.02;  // differences within 2% are equal for practice
constexpr double kNoisy = 0.15;

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string ms(double seconds) {
  const double value = seconds * 1000;
  return fixed(value, value >= 99.95 ? 0 : value >= 0.995 ? 1 : 2);
}
std::string times(double factor) { return fixed(factor, factor >= 9.95 ? 0 : 1) + "×"; }
std::string percent(double fraction, int digits = 0) { return fixed(100 * fraction, digits) + "%"; }
std::string mib(double bytes) { return fixed(bytes / kMiB, bytes < 10 * kMiB ? 1 : 0) + " MiB"; }
// As the page's slider shows it.
std::string limit_text(std::int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%.6g MiB", static_cast<double>(bytes) / kMiB);
  return text;
}
std::string some(std::size_t n, const char* what) { return concat({n, " ", what, n == 1 ? "" : "s"}); }

// Appends pieces to a sentence: say(s) << "plain" << Mode{"ddp"} << Strong{"Decided: "}.
struct Named {
  std::string text;
};
struct Strong {
  std::string text;
};
struct say {
  Sentence& to;
  const say& operator<<(const std::string& t) const { return to.push_back({Phrase::Style::plain, t}), *this; }
  const say& operator<<(const Named& n) const { return to.push_back({Phrase::Style::mode, n.text}), *this; }
  const say& operator<<(const Strong& s) const {
    return to.push_back({Phrase::Style::strong, s.text}), *this;
  }
};

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

bool succeeded(const Result& r) { return r.error.empty() && r.step_s > 0; }

std::int64_t peak(const Result& r) { return *std::max_element(r.peak_bytes.begin(), r.peak_bytes.end()); }

// "wait for fsdp 3 all_gather" becomes "wait for fsdp all_gather": what stands in parentheses, and numbers,
// say which one it was.
std::string without_numbers(const std::string& name) {
  std::string out;
  std::size_t begin = 0;
  while (begin < name.size()) {
    std::size_t end = name.find(' ', begin);
    if (end == std::string::npos) end = name.size();
    const std::string word = name.substr(begin, end - begin);
    if (word.starts_with("(")) break;
    if (word.find_first_not_of("0123456789") != std::string::npos) out += (out.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return out;
}

// The kind of communication that the devices spend most time in without computing.
std::string longest_wait(const Result& r) {
  std::map<std::string, double> seconds;
  for (const Span& s : r.spans)
    if (s.activity == Activity::communication &&
        std::find(r.rows.begin(), r.rows.end(), s.row) != r.rows.end())
      seconds[without_numbers(s.name)] += s.end - s.begin;
  if (seconds.empty()) return "waiting for communication";
  const auto most = std::max_element(seconds.begin(), seconds.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most->first;
}

// The fraction of the time with computing devices in which exactly one computes.
double alone(const Result& r) {
  std::vector<std::pair<double, int>> changes;
  for (const std::string& row : r.rows) {
    double end = -1;
    for (const Span& s : r.spans) {  // sorted by begin within a row, and possibly nested
      if (s.row != row || s.activity == Activity::communication || s.end <= end) continue;
      changes.emplace_back(std::max(s.begin, end), 1), changes.emplace_back(s.end, -1);
      end = s.end;
    }
  }
  std::sort(changes.begin(), changes.end());
  double one = 0, any = 0, at = 0;
  int busy = 0;
  for (const auto& [time, change] : changes) {
    if (busy == 1) one += time - at;
    if (busy > 0) any += time - at;
    at = time, busy += change;
  }
  return any > 0 ? one / any : 0;
}

std::string idle_reason(const Result& r) {
  if (r.rows.size() > 1 && alone(r) > 0.9) return "one device at a time";
  return r.family == "stages" ? "bubble" : "waiting for other devices";
}

struct Part {
  double seconds;
  std::string why, long_why;
};

// Largest first.
std::vector<Part> parts_of(const Losses& l, const Result& r, bool shared_memory) {
  const std::string wait = longest_wait(r), idle = idle_reason(r), update = "the update is not divided";
  std::vector<Part> parts = {
      {l.communication_s, wait, wait}, {l.idle_s, idle, idle}, {l.update_s, update, update}};
  if (shared_memory)
    parts.push_back({l.compute_s, "shared cores", "slower computing on shared cores and memory"});
  else parts.push_back({l.compute_s, "slower computing", "slower computing, in smaller pieces"});
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.seconds > b.seconds; });
  return parts;
}

std::string either(const Verdict& v) {
  if (v.high < 0) return percent(-v.high, 1) + " to " + percent(-v.low, 1) + " faster";
  if (v.low < 0) return percent(-v.low, 1) + " faster to " + percent(v.high, 1) + " slower";
  return percent(v.low, 1) + " to " + percent(v.high, 1) + " slower";
}

class Judge {
 public:
  explicit Judge(const Report& report) : report_(report), results_(report.results) {
    for (const Result& r : results_)
      if (succeeded(r)) able_.push_back(&r);
    if (!results_.empty() && succeeded(results_[0])) single_ = results_.data();
    std::sort(able_.begin(), able_.end(),
              [](const Result* a, const Result* b) { return a->step_s < b->step_s; });
  }

  Judgement judge() {
    note_machine();
    for (const Result& r : results_) j_.remarks.push_back(remark(r));
    std::vector<std::int64_t> limits = {0};
    for (const Result* r : able_) limits.push_back(peak(*r));
    std::sort(limits.begin(), limits.end());
    limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
    const bool all_have_memory = limits.size() > 1;
    const std::int64_t held = report_.memory_limit_bytes.value_or(limits.back());
    for (const std::int64_t limit : limits)
      if (all_have_memory || limit == 0) {
        if (limit <= held) j_.main_answer = j_.answers.size();
        j_.answers.push_back(answer(limit));
      }
    Phrase& first = j_.answers[j_.main_answer].headline.at(0);
    if (first.text.starts_with("Within ")) first.text = "Within " + limit_text(held) + " a device, ";
    same_losses();
    return std::move(j_);
  }

 private:
  std::size_t rounds() const { return able_.empty() ? 0 : able_[0]->rounds_s.size(); }
  int n() const { return report_.workload.devices; }
  bool shares_memory() const { return report_.workload.device_type == tapestry::DeviceType::cpu; }
  std::string devices() const { return n() == 1 ? "this device" : concat({"these ", n(), " devices"}); }

  // The factor by which the whole machine was slower in round i.
  double machine(std::size_t i) const { return i < j_.machine.size() ? j_.machine[i] : 1; }

  void note_machine() {
    for (std::size_t i = 0; i < rounds(); ++i) {
      std::vector<double> factors;
      for (const Result* r : able_) factors.push_back(r->rounds_s[i] / r->step_s);
      j_.machine.push_back(middle(factors));
    }
    if (able_.empty()) return;
    const auto [least, most] = std::minmax_element(j_.machine.begin(), j_.machine.end());
    if (const double moved = *most / *least - 1; moved > kNoisy) {
      Sentence s;
      say{s} << Strong{"The machine changed by " + percent(moved) + " between rounds: "}
             << "pairs of modes in one round cancel it, absolute times do not.";
      j_.notes.push_back(std::move(s));
    }
    if (interval_index(static_cast<int>(rounds())) == 0) {
      Sentence s;
      say{s} << Strong{some(rounds(), "round") + (rounds() == 1 ? " decides" : " decide") + " nothing: "}
             << "a verdict needs six. Repeat the command with --rounds 9.";
      j_.notes.push_back(std::move(s));
    }
    if (!single_) {
      Sentence s;
      say{s} << Strong{"single failed: "} << "there are no factors, and nothing to compare losses with.";
      j_.notes.push_back(std::move(s));
    }
  }

  Remark remark(const Result& r) const {
    Remark out;
    if (!r.error.empty()) {
      const std::string first = r.error.substr(0, r.error.find('\n'));
      out.failure = {{Phrase::Style::plain, first}};
    }
    if (r.step_s <= 0) return out;
    std::vector<double> own;
    for (std::size_t i = 0; i < r.rounds_s.size(); ++i) own.push_back(r.rounds_s[i] / machine(i));
    if (!own.empty()) {
      const auto [least, most] = std::minmax_element(own.begin(), own.end());
      out.spread = *most / *least - 1;
    }
    out.noisy = out.spread > kNoisy;
    if (!single_) return out;
    if (&r == single_) {
      out.why = "one device does everything";
      out.long_why = "One device, so nothing is sent and nothing waits.";
      return out;
    }
    out.losses = losses_of(r.breakdown, single_->breakdown, n());
    const auto parts = parts_of(*out.losses, r, shares_memory());
    out.why = ms(std::max(0.0, parts[0].seconds)) + " ms: " + parts[0].why;
    out.long_why = "Beyond a perfect split (" + ms(single_->step_s / n()) + " ms): ";
    std::size_t said = 0;
    for (const Part& p : parts)
      if (std::abs(p.seconds) >= 0.01 * r.step_s)
        out.long_why += (said++ == 0 ? "" : "; ") + ms_signed(p.seconds) + " " + p.long_why;
    if (said == 0) out.long_why += "nothing above 1%";
    out.long_why += ".";
    return out;
  }
  static std::string ms_signed(double seconds) { return seconds < 0 ? "−" + ms(-seconds) : ms(seconds); }

  // Why `r` is not n times as fast as one device.
  void why_not(const say& lead, const Result& r) const {
    if (!single_ || &r == single_ || n() < 2) return;
    const auto parts = parts_of(losses_of(r.breakdown, single_->breakdown, n()), r, shares_memory());
    if (parts[0].seconds < 0.02 * r.step_s) {
      lead << concat({"That is within 2% of a perfect split. "});
      return;
    }
    lead << Strong{concat({"Why not ", n(), "×? "})} << ms(parts[0].seconds) + " ms: " + parts[0].long_why;
    if (parts[1].seconds >= 0.02 * r.step_s)
      lead << "; " + ms(parts[1].seconds) + " ms: " + parts[1].long_why;
    lead << ".";
  }

  Answer answer(std::int64_t limit) const {
    Answer a;
    a.limit_bytes = limit;
    std::vector<const Result*> fit;
    for (const Result* r : able_)
      if (peak(*r) <= limit) fit.push_back(r);
    const bool limited = fit.size() < able_.size();
    if (fit.empty()) {
      none_fits(a);
      return a;
    }
    const Result& best = *fit[0];
    const bool decidable = interval_index(static_cast<int>(rounds())) > 0;
    std::vector<Place> rest;
    for (const Result* r : fit) {
      Place p{r->name, "", verdict(r->rounds_s, best.rounds_s)};
      if (r == &best) p.against_fastest.word = "fastest";
      const bool first = r == &best || (decidable && p.against_fastest.word != "slower");
      (first ? a.places : rest).push_back(std::move(p));
    }
    a.first = static_cast<int>(a.places.size());
    for (Place& p : a.places) p.place = !decidable ? "~1" : a.first > 1 ? "1=" : "1";
    for (Place& p : rest) {
      p.place = concat({decidable ? "" : "~", a.places.size() + 1});
      a.places.push_back(std::move(p));
    }
    headline(a, best, limited, decidable);
    lead(a, best, fit, decidable);
    if (a.first > 1) share(a);
    return a;
  }

  void none_fits(Answer& a) const {
    if (able_.empty()) {
      say{a.headline} << "No mode has a result.";
      say{a.lead} << "The last lines of each are below.";
      return;
    }
    std::int64_t least = peak(*able_[0]);
    for (const Result* r : able_) least = std::min(least, peak(*r));
    say{a.headline} << "No mode fits into this memory.";
    say{a.lead} << "The smallest needs " + mib(static_cast<double>(least)) +
                       " a device. More devices, a smaller batch or activation checkpointing would help.";
  }

  void headline(Answer& a, const Result& best, bool limited, bool decidable) const {
    const say to{a.headline};
    // The page puts its slider's value in place of this piece.
    if (limited) to << "Within " + limit_text(a.limit_bytes) + " a device, ";
    else to << "On " + devices() + ", ";
    if (nothing_decided(a)) {
      to << "nothing is decided: " << Named{best.name}
         << " measured fastest, " + ms(best.step_s) + " ms a step, but rounds differ by more than modes do.";
      return;
    }
    const int named = a.first > 4 ? 3 : a.first;
    for (int i = 0; i < named; ++i) {
      if (i > 0) to << (i + 1 == a.first ? " and " : ", ");
      to << Named{a.places[static_cast<std::size_t>(i)].name};
    }
    if (named < a.first) to << concat({" and ", a.first - named, " more"});
    to << (a.first > 1 ? " share first place: " : decidable ? " is fastest: " : " was fastest: ");
    std::string text = ms(best.step_s) + " ms a step";
    const bool faster = single_ && std::none_of(a.places.begin(), a.places.begin() + a.first,
                                                [&](const Place& p) { return p.name == single_->name; });
    if (faster) text += ", " + times(single_->step_s / best.step_s) + " one device";
    to << text + ".";
  }

  // True if all modes share the first place, and not because they are equal for practice.
  static bool nothing_decided(const Answer& a) {
    return a.first > 1 && static_cast<std::size_t>(a.first) == a.places.size() && !all_equal(a);
  }
  static bool all_equal(const Answer& a) {
    return std::all_of(a.places.begin() + 1, a.places.begin() + a.first,
                       [](const Place& p) { return p.against_fastest.word == "equal"; });
  }

  void lead(Answer& a, const Result& best, const std::vector<const Result*>& fit, bool decidable) const {
    const say to{a.lead};
    const auto count = static_cast<std::size_t>(a.first);
    if (!decidable && fit.size() > 1) {
      to << Strong{"Not decided: "} << "with " + some(rounds(), "round") + ", another order is likely. ";
    } else if (a.first > 1) {
      double apart = 0, spread = 0;
      const bool equal = all_equal(a);
      const Result* lean = nullptr;
      for (const Result* r : fit) {
        const auto p = std::find_if(a.places.begin(), a.places.begin() + a.first,
                                    [&](const Place& q) { return q.name == r->name; });
        if (p == a.places.begin() + a.first) continue;
        apart = std::max(apart, std::abs(p->against_fastest.median));
        spread = std::max(spread, j_.remarks[static_cast<std::size_t>(r - results_.data())].spread);
        if (!lean || peak(*r) < peak(*lean)) lean = r;
      }
      to << Strong{equal ? "Equal for practice: " : "Not decided by time: "}
         << "they differ by up to " + percent(apart, 1) + ", rounds of one mode by up to " + percent(spread) +
                ". ";
      if (nothing_decided(a)) to << "Repeat it on a quiet machine, or with more rounds. ";
      to << Strong{"By memory: "} << Named{lean->name}
         << " needs least, " + mib(static_cast<double>(peak(*lean))) + " a device. ";
    } else if (a.places.size() > count) {
      const Place& next = a.places[count];
      to << Strong{"Decided: "} << "the next, " << Named{next.name}
         << ", is " + percent(next.against_fastest.low, 1) + " to " + percent(next.against_fastest.high, 1) +
                " slower in paired rounds. ";
    }
    // If no mode gains from more devices, say why the best of them does not.
    const Result* shown = &best;
    if (&best == single_ && fit.size() > 1) {
      shown = fit[1];
      to << "More devices do not help here: " << Named{shown->name}
         << " takes " + ms(shown->step_s) + " ms. ";
    }
    why_not(to, *shown);
  }

  static void share(Answer& a) {
    const say to{a.shared};
    const std::string& fastest = a.places[0].name;
    for (const bool equal : {true, false}) {
      int count = 0;
      for (int i = 1; i < a.first; ++i) {
        const Place& p = a.places[static_cast<std::size_t>(i)];
        if ((p.against_fastest.word == "equal") != equal) continue;
        if (count++ > 0) to << ", ";
        else if (equal) to << Strong{"Equal for practice"} << " to " << Named{fastest} << ": ";
        else
          to << Strong{a.shared.empty() ? "Not decided" : " Not decided"} << " against " << Named{fastest}
             << ", since the spread is larger than the difference: ";
        to << Named{p.name} << " (" + either(p.against_fastest) + ")";
      }
      if (count > 0) to << ".";
    }
  }

  void same_losses() {
    const say to{j_.same_losses};
    if (!single_ || able_.size() < 2) return;
    double worst = 0;
    for (const Result* r : able_) worst = std::max(worst, r->difference);
    char text[128];
    std::snprintf(text, sizeof text, "their losses equal those of single within %.1g (limit %.1g).", worst,
                  tolerance(report_.workload));
    to << concat({"All ", able_.size(), " modes in the ranking computed the same training: ", text});
  }

  const Report& report_;
  const std::vector<Result>& results_;
  std::vector<const Result*> able_;  // by ascending step time
  const Result* single_ = nullptr;
  Judgement j_;
};

}  // namespace

std::string text_of(const Sentence& sentence) {
  std::string text;
  for (const Phrase& p : sentence) text += p.text;
  return text;
}

int interval_index(int n) {
  // The interval from the k-th smallest to the k-th largest value misses the median if fewer than k of n fair
  // coins show heads, or fewer than k show tails.
  double tail = 0, coins = std::ldexp(1.0, -n);
  int k = 0;
  for (int i = 0; 2 * i < n; ++i) {
    tail += coins;
    if (2 * tail > 0.05) break;
    k = i + 1;
    coins = coins * (n - i) / (i + 1);
  }
  return k;
}

Verdict verdict(const std::vector<double>& rounds_s, const std::vector<double>& fastest_s) {
  tapestry::check(!rounds_s.empty() && rounds_s.size() == fastest_s.size(), "[verdict] ", rounds_s.size(),
                  " rounds against ", fastest_s.size(), "; pass the same number, at least one");
  std::vector<double> ratios;
  for (std::size_t i = 0; i < rounds_s.size(); ++i) ratios.push_back(rounds_s[i] / fastest_s[i] - 1);
  std::sort(ratios.begin(), ratios.end());
  const int k = interval_index(static_cast<int>(ratios.size()));
  const auto index = static_cast<std::size_t>(std::max(k, 1)) - 1;
  Verdict v{ratios[index], middle(ratios), ratios[ratios.size() - 1 - index], "undecided"};
  if (k == 0) return v;
  if (v.low > -kEqual && v.high < kEqual) v.word = "equal";
  else if (v.low > 0) v.word = "slower";
  return v;
}

Losses losses_of(const StepBreakdown& step, const StepBreakdown& single, int devices) {
  const double n = devices;
  return {.communication_s = step.exposed_comm_s - single.exposed_comm_s / n,
          .idle_s = step.idle_s - single.idle_s / n,
          .update_s = step.update_s - single.update_s / n,
          .compute_s = step.forward_s + step.backward_s - (single.forward_s + single.backward_s) / n};
}

Judgement judge(const Report& report) { return Judge(report).judge(); }

}  // namespace apps::compare
