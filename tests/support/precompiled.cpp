// Empty: the source for which catch.h is precompiled; every test program then uses that.
