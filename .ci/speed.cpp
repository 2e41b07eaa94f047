// .ci/run compiles this file to measure how fast a machine is: its CPU time is the unit of CI's budget. It includes headers of
// the standard library only, so that a change of Tapestry does not change the unit. Any change here needs a new budget.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

using Value = std::variant<int, double, std::string, std::vector<double>>;

std::map<std::string, Value> parse(const std::string& text) {
  static const std::regex pattern("(\\w+)\\s*=\\s*([^;]+);");
  std::map<std::string, Value> values;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    std::istringstream stream((*match)[2]);
    std::vector<double> numbers;
    for (double x; stream >> x;) numbers.push_back(x);
    if (numbers.empty()) {
      values[(*match)[1]] = (*match)[2].str();
    } else {
      values[(*match)[1]] = numbers;
    }
  }
  return values;
}

template <class T>
std::vector<std::pair<T, int>> histogram(std::vector<T> values, const std::function<bool(const T&)>& keep) {
  values.erase(std::remove_if(values.begin(), values.end(), [&](const T& v) { return !keep(v); }), values.end());
  std::unordered_map<T, int> counts;
  for (const T& v : values) ++counts[v];
  std::vector<std::pair<T, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return sorted;
}
template std::vector<std::pair<int, int>> histogram(std::vector<int>, const std::function<bool(const int&)>&);
template std::vector<std::pair<std::string, int>> histogram(std::vector<std::string>,
                                                            const std::function<bool(const std::string&)>&);
