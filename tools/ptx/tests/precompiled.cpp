// The build precompiles Catch2 for this empty source file; all test programs use the result.
