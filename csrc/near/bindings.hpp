#pragma once

#include <nanobind/nanobind.h>

void bind_near(nanobind::module_& m);
