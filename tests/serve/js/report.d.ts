// What the server makes of the scripts of reports.
declare module "*/report.js" {
  export const enhancements: ((root: Element) => void)[];
}
