#pragma once
// Merges means and variances of parts of an array (Chan, Golub and LeVeque, "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979).

namespace tapestry::kernels::cpu {

/// The mean of the values so far, and the sum of their squared deviations from it.
struct Moments {
  double count = 0, mean = 0, squares = 0;
  void merge(double n, double m, double sq) {
    const double delta = m - mean, total = count + n;
    mean += delta * (n / total);
    squares += sq + delta * delta * (count * n / total);
    count = total;
  }
};

}  // namespace tapestry::kernels::cpu
