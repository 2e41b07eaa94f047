#pragma once
namespace apps {

/// Bounds how long the program's idle compute threads spin, so that they leave their cores to other programs.
///
/// libgomp reads the bound from GOMP_SPINCOUNT when it is loaded, before main. So this function sets the
/// variable and executes the program again: in the same process, with the same arguments, open files and
/// signal mask. It returns without doing so if the user has set GOMP_SPINCOUNT, OMP_WAIT_POLICY,
/// OMP_PROC_BIND or OMP_PLACES, if OMP_NUM_THREADS is 1 or the process may use one core only, or if the
/// program was started through the dynamic loader or by a debugger. Call it first in main.
void bound_spin(char** argv);

}  // namespace apps
