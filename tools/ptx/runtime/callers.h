#pragma once
#include <string>
#include <vector>

namespace stand_in {

/// The functions of the program that led to the current call, innermost first. Their files are looked up when the
/// text is needed: each takes longer than a small kernel.
class Callers {
 public:
  /// Those of the current call. None after reset(), because tests do not need them.
  static Callers now();
  /// "\nhost: PROGRAM+0x1234 PROGRAM+0x5678", where the numbers are addresses in the file. tapestry-ptx makes
  /// lines of the source of them. Empty without callers.
  std::string text() const;

 private:
  std::vector<void*> frames_;
};

}  // namespace stand_in
