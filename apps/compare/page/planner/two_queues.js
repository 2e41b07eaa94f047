// internal/two_queues.cpp. A phase is {seconds, needs}, a collective {seconds, after, at_begin}.
function simulate_queues(phases, collectives, interference) {
  const slowdown = interference.overlap_slowdown, speed = 1 - interference.compute_stall, count = phases.length, works = collectives.length;
  const result = { computing_s: new Array(count).fill(0), waiting_s: new Array(count).fill(0), tail_s: 0, phase_ended_s: [], collective_ended_s: [] };
  let now = 0, phase = 0, work = 0, begun = false, left = 0, work_left = works > 0 ? collectives[0].seconds : 0;
  while (phase < count || work < works) {
    if (phase < count && !begun && phases[phase].needs < work) {
      begun = true;
      left = phases[phase].seconds;
    }
    const w = collectives[work], communicates = work < works && (w.after < phase || (w.at_begin && w.after === phase && begun));
    if (!begun && !communicates) throw new Error('phase ' + phase + ' and collective ' + work + ' wait for each other');
    const compute_speed = !begun ? 0 : communicates ? speed : 1, work_speed = !communicates ? 0 : begun ? 1 / slowdown : 1;
    const phase_ends = compute_speed > 0 ? left / compute_speed : begun && left <= 0 ? 0 : Infinity;
    const work_ends = work_speed > 0 ? work_left / work_speed : Infinity, passed = Math.min(phase_ends, work_ends);
    if (begun) result.computing_s[phase] += passed;
    else if (phase < count) result.waiting_s[phase] += passed;
    else result.tail_s += passed;
    now += passed;
    left -= passed * compute_speed;
    work_left -= passed * work_speed;
    if (work_ends <= passed) {
      ++work;
      result.collective_ended_s.push(now);
      work_left = work < works ? collectives[work].seconds : 0;
    }
    if (phase_ends <= passed) {
      ++phase;
      result.phase_ended_s.push(now);
      begun = false;
    }
  }
  return result;
}
