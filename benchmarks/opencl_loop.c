// SPDX-License-Identifier: Apache-2.0
// What the driver of OpenCL itself takes for a launch: the loop of a program written in C.
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

static const char* const kSource =
    "__kernel void add(__global float* a, __global float* b, __global float* c, int n) {"
    "  int i = get_global_id(0); if (i < n) c[i] = a[i] + b[i]; }";

static void* library;
static void* Find(const char* name) { return dlsym(library, name); }
#define FUNCTION(result, name, ...) result (*name)(__VA_ARGS__) = (result (*)(__VA_ARGS__))Find(#name)

static double Now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Writes the seconds of each of `rounds` rounds of `launches` launches, each with its arguments set, without the work
// itself, which each round waits for at its end. Returns 0, or the status of the function that failed.
int measure_launches(const char* path, int launches, int rounds, double* seconds) {
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return 1;
  FUNCTION(int, clGetPlatformIDs, unsigned, void**, unsigned*);
  FUNCTION(int, clGetDeviceIDs, void*, uint64_t, unsigned, void**, unsigned*);
  FUNCTION(void*, clCreateContext, const void*, unsigned, void**, void*, void*, int*);
  FUNCTION(void*, clCreateCommandQueue, void*, void*, uint64_t, int*);
  FUNCTION(void*, clCreateBuffer, void*, uint64_t, size_t, void*, int*);
  FUNCTION(void*, clCreateProgramWithSource, void*, unsigned, const char**, const size_t*, int*);
  FUNCTION(int, clBuildProgram, void*, unsigned, void**, const char*, void*, void*);
  FUNCTION(void*, clCreateKernel, void*, const char*, int*);
  FUNCTION(int, clSetKernelArg, void*, unsigned, size_t, const void*);
  FUNCTION(int, clEnqueueNDRangeKernel, void*, void*, unsigned, const size_t*, const size_t*, const size_t*, unsigned,
           void*, void*);
  FUNCTION(int, clFinish, void*);
  void *platform, *device;
  int status = clGetPlatformIDs(1, &platform, NULL);
  if (!status) status = clGetDeviceIDs(platform, 0xFFFFFFFF, 1, &device, NULL);
  if (status) return status;
  void* context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
  void* queue = clCreateCommandQueue(context, device, 2, &status);  // as the plug-in's: with profiling
  void* program = clCreateProgramWithSource(context, 1, (const char**)&kSource, NULL, &status);
  if (!status) status = clBuildProgram(program, 1, &device, "", NULL, NULL);
  if (status) return status;
  void *kernel = clCreateKernel(program, "add", &status), *buffers[3];
  for (int i = 0; i < 3; ++i) buffers[i] = clCreateBuffer(context, 1, 64 * sizeof(float), NULL, &status);
  const size_t size = 64;
  const int n = 64;
  for (int round = -1; round < rounds; ++round) {  // the first warms up
    double start = Now();
    for (int i = 0; i < launches && !status; ++i) {
      const int arguments[] = {i % 2, 2, 1 - i % 2};  // each launch reads what the one before has written
      for (unsigned k = 0; k < 3; ++k) status |= clSetKernelArg(kernel, k, sizeof(void*), &buffers[arguments[k]]);
      status |= clSetKernelArg(kernel, 3, sizeof(n), &n);
      status |= clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &size, &size, 0, NULL, NULL);
    }
    if (round >= 0) seconds[round] = Now() - start;
    clFinish(queue);
  }
  return status;
}
