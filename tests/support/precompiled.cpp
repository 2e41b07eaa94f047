// Empty. This is the source file for which catch.h is precompiled; all test programs use the result.
