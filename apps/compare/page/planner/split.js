// split.cpp
function balanced_split(costs, parts) {
  const n = costs.length, sums = [0];
  for (const cost of costs) sums.push(sums[sums.length - 1] + cost);
  const best = range(parts + 1).map(() => new Array(n + 1).fill(Infinity)), taken = range(parts + 1).map(() => new Array(n + 1).fill(0));
  best[0][n] = 0;
  for (let p = 1; p <= parts; ++p)
    for (let i = 0; i < n; ++i)
      for (let count = 1; i + count <= n; ++count) {
        const largest = Math.max(sums[i + count] - sums[i], best[p - 1][i + count]);
        if (largest >= best[p][i]) continue;
        best[p][i] = largest;
        taken[p][i] = count;
      }
  const split = [];
  for (let p = parts, i = 0; p > 0; i += taken[p][i], --p) split.push(taken[p][i]);
  return split;
}
const balanced_split_of = (profile, setup, stages) =>
  balanced_split(profile.blocks.map(b => at_(b.forward_s, setup.batch_size / setup.micro_batches) + at_(b.backward_s, setup.batch_size / setup.micro_batches)), stages);
